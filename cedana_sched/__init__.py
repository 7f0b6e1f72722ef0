"""Harmless preemption: a scheduler's victims are frozen, streamed to storage, and continue where they stopped."""

__version__ = "0.1.0"
