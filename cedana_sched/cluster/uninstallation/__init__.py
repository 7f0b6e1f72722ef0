"""The removal of the suite from a cluster: nothing stays held, nodes are left, what Helm would leave is deleted."""
