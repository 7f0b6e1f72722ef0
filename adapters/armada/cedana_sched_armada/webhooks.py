"""Armada's admission handlers: queues that protect their pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Self

from cedana_sched_armada.queue_opt_in import QueueOptIn
from cedana_sched_armada.settings import ProtectedQueues
from cedana_sched_webhooks.admission_types import UNMARKED_POD
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks

PODS: Final = "/armada/pods"


class ArmadaWebhooks(SchedulerWebhooks):
    """Needs no cache: pods have a label with their queue."""

    name: ClassVar[str] = "armada"

    def __init__(self, opt_in: QueueOptIn) -> None:
        self._opt_in = opt_in

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """See `SchedulerWebhooks`."""
        return cls(QueueOptIn(ProtectedQueues.read(replica.settings).queues, replica.served))

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {PODS: Endpoint(self._opt_in.answer_pod_admission, UNMARKED_POD)}
