"""Keeps preStop calls of the kubelet open on a node, whatever becomes of its agent: a component of its own."""
