"""`python -m cedana_sched.cluster.node`."""

from __future__ import annotations

import sys

from cedana_sched.cluster import logs
from cedana_sched.cluster.configuration import AgentConfiguration, load
from cedana_sched.cluster.node.main import serve
from cedana_sched.cluster.process import run
from cedana_sched.model.errors import UsageError


def main() -> int:
    """Read the configuration, and serve."""
    try:
        configuration = load(AgentConfiguration)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    logs.configure("agent", configuration.log)
    return run(lambda: serve(configuration))


if __name__ == "__main__":
    sys.exit(main())
