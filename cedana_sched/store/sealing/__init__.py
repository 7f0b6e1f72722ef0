"""Sealed snapshots: without the keys they cannot be forged, changed or read."""
