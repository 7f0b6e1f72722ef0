"""Scheduler integration: the contract of adapters, and the registry that loads them."""
