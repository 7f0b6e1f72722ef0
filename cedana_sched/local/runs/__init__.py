"""What runs a job: a supervisor for each run, its namespaces and control groups, and the runtime over all of them."""
