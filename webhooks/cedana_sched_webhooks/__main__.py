"""`python -m cedana_sched_webhooks`."""

import sys

from cedana_sched_webhooks.main import main

sys.exit(main())
