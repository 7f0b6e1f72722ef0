"""The Armada adapter: hears of preemptions from Armada's event streams, and submits the preempted jobs again."""
