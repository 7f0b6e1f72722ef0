"""Holds: one module for each kind of eviction that an admission call can hold."""
