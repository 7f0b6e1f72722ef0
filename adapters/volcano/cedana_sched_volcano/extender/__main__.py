"""`python -m cedana_sched_volcano.extender`."""

import sys

from cedana_sched_volcano.extender.main import main

sys.exit(main())
