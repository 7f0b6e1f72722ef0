"""The coordinator of a cluster: its journal, its agents and its pods are Kubernetes objects."""
