"""What an installation says to the extender: one JSON file, which the chart writes from its values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cedana_sched.service.configuration import PodsConfiguration, Port


class Configuration(PodsConfiguration):
    """One replica of the extender. Its deadlines are the webhooks' own: what they refuse, it refuses."""

    port: Port = 8713
    """Plain HTTP, which is all that Volcano's plugin speaks without a certificate that its image trusts."""
    operations_port: Port = 8714
    """`/healthz`, `/readyz`, `/metrics`."""
    drain_seconds: Annotated[float, Field(ge=0)] = 5.0
    """Between SIGTERM and the end of listening: as long as the cluster needs to send requests elsewhere."""
    victim_steering: bool = False
    """Whether, among victims that Volcano considers equal, those are chosen that have least to lose."""
    secret: str = "cedana-sched-volcano-extender"  # noqa: S105  # a Secret's name
    """The Secret with the secret part of our address."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 0.5
    """How long Volcano waits for an answer (its `extender.httpTimeout`): we wait no longer for the rest of a call."""
