"""`python -m cedana_sched.cluster.holds`."""

from __future__ import annotations

import sys

from cedana_sched.cluster.holds.configuration import HoldsConfiguration
from cedana_sched.cluster.holds.main import serve
from cedana_sched.service.process import run_in_good_order, start

if __name__ == "__main__":
    sys.exit(
        start(
            "holds",
            HoldsConfiguration,
            lambda configuration: run_in_good_order(lambda stopping: serve(configuration, stopping)),
        )
    )
