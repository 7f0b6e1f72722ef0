"""The suite in a Kubernetes cluster: one coordinator, and on each node an agent and a keeper of preStop calls."""
