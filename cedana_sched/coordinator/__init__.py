"""Decides: a synchronous state machine (core) and the shell that does the I/O around it."""
