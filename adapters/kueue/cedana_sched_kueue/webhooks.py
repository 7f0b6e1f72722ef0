"""Kueue's admission handlers: the hold of the suspensions by which it evicts Jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import ClassVar, Final, Self

from cedana_sched.adapter.settings import read_section
from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched.model.objects.base import Written
from cedana_sched_kueue.suspension_hold import JOB, SuspensionHold
from cedana_sched_webhooks.schedulers import Endpoint, Handler, ReplicaAccess, SchedulerWebhooks

JOBS: Final = "/mutate/jobs"
"""Kept from when the webhook was not Kueue's alone: its name in installed configurations follows from it."""


class Settings(Written):
    """The section `kueue` of the adapters' settings in the webhooks' file."""

    users: frozenset[str] = frozenset({"system:serviceaccount:kueue-system:kueue-controller-manager"})
    """Users whose suspensions of Jobs are held."""


class KueueWebhooks(SchedulerWebhooks):
    """Needs no cache of its own: the replica shares its PreemptionHolds."""

    name: ClassVar[str] = "kueue"

    def __init__(self, hold: SuspensionHold) -> None:
        self._hold = hold

    @classmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """See `SchedulerWebhooks`."""
        users = read_section(cls.name, Settings, replica.settings).users
        requests = FirstRequests(time.monotonic)
        return cls(SuspensionHold(replica.preemptions, users, replica.served, first_requests=requests, now=replica.now))

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {JOBS: Endpoint(self._hold.answer, JOB)}
