"""The configuration of the keeper of a node's holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from cedana_sched.service.configuration import ComponentConfiguration, Port


class HoldsConfiguration(ComponentConfiguration):
    """`holds.json`."""

    port: Port = 10352
    """Where preStop hooks call, on the loopback address only."""
    socket: Path = Path("/run/cedana-sched/holds/agent.sock")
    """Where the node's agent answers."""
    listeners: Path = Path("/run/cedana-sched/holds/listeners")
    """The folder in which the node's agent sees which sockets at the port are ours."""
    agent_away_seconds: Annotated[float, Field(gt=0, le=3_600)] = 120.0
    """A pod waits so long for an agent that is not there."""
    serving: Path = Path("/tmp/serving")  # noqa: S108  # a folder of this container alone
    """A file that is there once calls are answered: the pod of a new version may be called instead of this one."""
