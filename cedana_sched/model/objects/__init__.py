"""Our own Kubernetes kinds, as people and programs read and write them; the CRDs are generated from these models."""
