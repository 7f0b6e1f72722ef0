"""The command-line interface `cedana-sched`."""
