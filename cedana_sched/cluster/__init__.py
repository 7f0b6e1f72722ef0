"""The suite as it runs in a Kubernetes cluster: one coordinator, and an agent on each node."""
