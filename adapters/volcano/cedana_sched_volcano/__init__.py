"""Volcano: evictions of pods become signals, of whole gangs together."""
