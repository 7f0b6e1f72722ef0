"""The admission webhooks: they make pods ready for a checkpoint and a restore, and hold evictions."""
