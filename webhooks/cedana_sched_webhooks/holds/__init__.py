"""Holds: one module for each way in which a scheduler evicts, that an admission call can make wait."""
