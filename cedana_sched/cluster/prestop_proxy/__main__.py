"""`python -m cedana_sched.cluster.prestop_proxy`."""

from __future__ import annotations

import sys

from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.cluster.prestop_proxy.main import serve
from cedana_sched.component.process import run_with_graceful_stop, start

if __name__ == "__main__":
    sys.exit(
        start(
            "prestop-proxy",
            PreStopProxyConfiguration,
            lambda configuration: run_with_graceful_stop(lambda stopping: serve(configuration, stopping)),
        )
    )
