"""A Python program with threads, shared memory, locks and every kind of open file."""
