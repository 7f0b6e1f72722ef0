"""Kubernetes plumbing: requests, watches, leader election, Events. Scheduler-independent; decides nothing."""
