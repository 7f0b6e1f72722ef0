"""The Armada adapter: detects preemptions in Armada's event streams, and resubmits the preempted jobs."""
