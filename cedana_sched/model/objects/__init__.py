"""API types of the sched.cedana.ai group; the CRDs are generated from these models."""
