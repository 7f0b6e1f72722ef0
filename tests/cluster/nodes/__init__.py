"""Nodes: machines with containerd, a kubelet and kube-proxy, and what a test may do to them."""
