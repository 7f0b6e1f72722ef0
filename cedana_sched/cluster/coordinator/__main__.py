"""`python -m cedana_sched.cluster.coordinator`."""

from __future__ import annotations

import sys

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator.main import serve
from cedana_sched.component.process import run, start

if __name__ == "__main__":
    sys.exit(start("coordinator", CoordinatorConfiguration, lambda configuration: run(lambda: serve(configuration))))
