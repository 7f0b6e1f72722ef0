"""Volcano: its evictions of pods as signals, whole gangs together."""
