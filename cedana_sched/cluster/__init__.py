"""The suite in a Kubernetes cluster: one coordinator, an agent and a keeper of preStop calls on each node."""
