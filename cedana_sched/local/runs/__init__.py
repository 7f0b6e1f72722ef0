"""The runtime of jobs: a supervisor process, namespaces and control groups for each run."""
