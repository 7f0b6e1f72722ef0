"""Gives each node's agent credentials of the namespaces that it has to do with, and of no other."""
