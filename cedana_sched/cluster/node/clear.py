"""`python -m cedana_sched.cluster.node.clear`: takes the product's part of this node back.

Run on each node before the agents are removed for good, with an agent's configuration and rights. Snapshots and logs
stay.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.node.facts import NodeFacts
from cedana_sched.cluster.node.installation.host import Host
from cedana_sched.cluster.node.installation.installation import Installation, Site
from cedana_sched.kube.client import Api
from cedana_sched.service.process import run, start

_HOST_ROOT = Path("/proc/1/root")


async def clear(configuration: AgentConfiguration) -> None:
    """Take it back: first the labels, so that no pod is sent here any more.

    Raises:
        HostError: containerd's configuration is no more what we can read.
        ApiError: the API server does not take the labels away.
    """
    async with Api.open() as api:
        facts = NodeFacts(api, configuration.node_name())
        await facts.withdraw()
        await Installation(Host(_HOST_ROOT), Site.of(configuration), facts.is_ready).uninstall()


if __name__ == "__main__":
    sys.exit(start("agent", AgentConfiguration, lambda configuration: run(lambda: clear(configuration))))
