"""Kubernetes plumbing: requests, watches, the leader's lease, Events. It knows no scheduler and decides nothing."""
