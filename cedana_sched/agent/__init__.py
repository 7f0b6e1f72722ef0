"""Executes the orders of one node - freeze, capture, kill, stage, restore - and reports their outcomes."""
