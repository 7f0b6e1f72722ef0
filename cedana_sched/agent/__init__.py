"""Does: executes the orders of one node - freeze, capture, kill, stage, restore - and reports how it went."""
