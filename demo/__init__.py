"""`make demo`: two groups share this machine; a simulation is preempted, continues, and ends in the very same bits."""
