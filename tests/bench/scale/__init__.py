"""Thousands of pods, a thousand victims in one moment: what the coordinator, the webhooks and the API server do."""
