"""Kubernetes itself: preemptions by kube-scheduler, drains, taints and deletions become signals."""
