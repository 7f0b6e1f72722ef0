"""Configuration of the `prestop-proxy` pod of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from cedana_sched.component.configuration import ComponentConfiguration, Port


class PreStopProxyConfiguration(ComponentConfiguration):
    """`prestop-proxy.json`."""

    port: Port = 10352
    """The port that preStop hooks call, on the loopback address only."""
    socket: Path = Path("/run/cedana-sched/holds/agent.sock")
    """The unix socket on which the node's agent serves."""
    listeners: Path = Path("/run/cedana-sched/holds/listeners")
    """The folder in which the `prestop-proxy` pods record their listening sockets; the node's agent reads it."""
    agent_away_seconds: Annotated[float, Field(gt=0, le=3_600)] = 120.0
    """How long a call waits for an agent that is not running."""
    serving: Path = Path("/tmp/serving")  # noqa: S108  # a folder of this container alone
    """Readiness file: exists once calls are served, so that traffic may move to the pod of a new version."""
