"""Extender configuration of an installation: one JSON file, which the chart writes from its values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cedana_sched.component.configuration import PodsConfiguration, Port


class Configuration(PodsConfiguration):
    """One replica of the extender. Uses the webhooks' deadlines: it refuses exactly what they refuse."""

    port: Port = 8713
    """Plain HTTP: Volcano's plugin supports TLS only with a certificate that its image trusts."""
    operations_port: Port = 8714
    """`/healthz`, `/readyz`, `/metrics`."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Between SIGTERM and closing the listener: the time that the cluster needs to route requests elsewhere."""
    victim_steering: bool = False
    """Whether to choose, among victims that Volcano considers equal, those that have least to lose."""
    secret: str = "cedana-sched-volcano-extender"  # noqa: S105  # a Secret's name
    """The Secret with the secret segment of our address."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 0.5
    """How long Volcano waits for an answer (its `extender.httpTimeout`), and so how long we wait for a call's body."""
