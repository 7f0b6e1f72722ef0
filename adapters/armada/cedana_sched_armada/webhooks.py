"""Armada's admission handlers: queues that protect their pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Self

from cedana_sched_armada.queues import QueueOptIn
from cedana_sched_armada.settings import QueueSettings
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks
from cedana_sched_webhooks.shapes import UNMARKED_POD

PODS: Final = "/armada/pods"


class ArmadaWebhooks(SchedulerWebhooks):
    """Needs no cache: pods have a label with their queue."""

    name: ClassVar[str] = "armada"

    def __init__(self, opt_in: QueueOptIn) -> None:
        self._opt_in = opt_in

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """See `SchedulerWebhooks`."""
        return cls(QueueOptIn(QueueSettings.read(replica.settings).queues, replica.served))

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {PODS: Endpoint(self._opt_in.answer, UNMARKED_POD)}
