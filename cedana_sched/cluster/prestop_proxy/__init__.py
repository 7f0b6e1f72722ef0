"""Not PreemptionHolds: the kubelet's preStop calls, kept open on a node across restarts of the agent.

A component of its own, the DaemonSet `prestop-proxy`: `call_forwarder` forwards each call to the agent, or to the
agent's successor.
"""
