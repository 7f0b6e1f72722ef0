"""Notices of interruption of this node: its provider's, from the metadata server, and the kubelet's, of a shutdown."""
