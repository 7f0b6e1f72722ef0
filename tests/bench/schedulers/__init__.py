"""The schedulers that are measured, one module each, behind one protocol."""
