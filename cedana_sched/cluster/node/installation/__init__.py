"""Prepares a node for restores: our programs on the host, our runtime handler in containerd's configuration."""
