"""Redis under load."""
