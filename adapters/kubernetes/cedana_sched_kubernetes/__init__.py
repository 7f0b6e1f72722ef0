"""Kubernetes itself: preemptions by kube-scheduler, drains, taints, deletions and ends of nodes become signals."""
