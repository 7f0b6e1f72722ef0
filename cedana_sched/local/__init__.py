"""The embedded engine: a small scheduler, jobs in namespaces and the coordinator, on one machine."""
