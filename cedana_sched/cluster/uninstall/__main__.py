"""`python -m cedana_sched.cluster.uninstall`."""

from __future__ import annotations

import os
import sys

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.uninstall.main import ReleaseSettings, uninstall
from cedana_sched.component.process import run, start

if __name__ == "__main__":
    sys.exit(
        start(
            "uninstall",
            CoordinatorConfiguration,
            lambda configuration: run(lambda: uninstall(configuration, ReleaseSettings.read(os.environ))),
        )
    )
