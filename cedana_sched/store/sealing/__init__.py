"""Snapshots sealed: who can only write to the store forges none, and who can only read it learns nothing of them."""
