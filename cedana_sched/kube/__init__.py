"""Kubernetes plumbing: requests, watches, leader election, Events. Knows no scheduler and decides nothing."""
