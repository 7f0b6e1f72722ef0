"""The agent of one node of a cluster: CRI containers instead of local jobs, orders from objects."""
