"""Admission webhooks: prepare pods for checkpoint and restore, and hold evictions."""
