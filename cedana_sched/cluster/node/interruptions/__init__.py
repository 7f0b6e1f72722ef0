"""Notices of interruption that the node's provider gives, read from its metadata server."""
