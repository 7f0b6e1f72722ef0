"""The coordinator in a cluster: journal, agents and pods are Kubernetes objects."""
