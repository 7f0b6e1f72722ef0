"""Sealed snapshots: without the keys nobody can forge, change or read one."""
