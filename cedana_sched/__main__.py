"""`python -m cedana_sched` is the command line, where the script is not on the PATH."""

from cedana_sched.cli.main import main

main()
