"""The embedded engine: a small scheduler, jobs in namespaces, and the coordinator over them on one machine."""
