"""The face on the command line: `cedana-sched`."""
