"""Two processes that talk: over loopback TCP, over a unix socket, or through pipes."""
