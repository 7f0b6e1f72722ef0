"""The suite in a Kubernetes cluster: one coordinator, and on each node an agent and a proxy of preStop calls."""
