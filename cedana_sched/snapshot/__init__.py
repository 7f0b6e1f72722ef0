"""How a process tree becomes a set of byte streams, and continues from them: CRIU, and all that it needs."""
