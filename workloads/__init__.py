"""Real programs that the demo and the three-generation tests preempt, each with its own check that nothing was lost.

Every folder is one workload: what it needs, its inputs, its command line, its progress and its check.
Nothing here knows the engine: `workloads.catalog` is the way in.
"""
