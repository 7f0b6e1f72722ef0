"""The agent of one cluster node: CRI containers instead of local jobs, orders from objects."""
