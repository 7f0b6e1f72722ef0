"""Makes a node able to continue pods: our programs on the host, our runtime handler in containerd's configuration."""
