"""Not PreemptionHolds: the kubelet's preStop calls, kept open on a node whatever becomes of its agent.

A component of its own, the DaemonSet `holds`: `keeper` forwards each call to the agent, and to its successor.
"""
