"""`make demo`: two groups share a machine; a simulation is preempted and restored, with bit-identical results."""
