"""`python -m cedana_sched.cluster.node`."""

from __future__ import annotations

import sys

from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.node.main import serve
from cedana_sched.component.process import run_with_graceful_stop, start

if __name__ == "__main__":
    sys.exit(
        start(
            "agent",
            AgentConfiguration,
            lambda configuration: run_with_graceful_stop(lambda stopping: serve(configuration, stopping)),
        )
    )
