"""Webhook parts of scheduler adapters: admission calls of their own kinds, and the caches these need."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Self

import structlog

from cedana_sched.adapter.registry import load_class
from cedana_sched.component.isolated_task import run_in_own_task
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched_webhooks.admission import Answer, Request, Shape

log = structlog.get_logger(__name__)

GROUP = "cedana_sched.webhooks"
"""Entry point group; names are adapter names."""
MEMBERS = ("name", "connect", "handlers", "run")
PAUSE_SECONDS = 10.0
WELL_SECONDS = 60.0
"""After a run of this length, a problem counts as new and is logged again."""

Handler = Callable[[Request], Awaitable[Answer]]


class Endpoint:
    """A handler with a shape: objects are decoded only so far. Handlers without one receive whole objects."""

    def __init__(self, answer: Handler, shape: Shape) -> None:
        self.answer = answer
        self.shape = shape

    async def __call__(self, request: Request) -> Answer:
        return await self.answer(request)


@dataclass(frozen=True)
class ReplicaAccess:
    """Client, caches and settings that a replica shares with one scheduler's part."""

    api: Api
    preemptions: PreemptionIndex
    """PreemptionHolds and Checkpoints of the served namespaces."""
    served: ServedNamespaces = EVERYWHERE
    """Namespaces whose objects are mutated and held; passed as `within` to watches of namespaced kinds."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's section of `adapterSettings`; the adapter defines its fields."""
    now: Callable[[], datetime] = SERVER_TIME.now
    """The time of day, by the clock that writes deadlines."""


class SchedulerWebhooks(ABC):
    """The webhook part that an adapter registers under its name."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def connect(cls, replica: ReplicaAccess) -> Self:
        """Construct it; makes no API call.

        Raises:
            UsageError: a setting is invalid.
        """

    @abstractmethod
    def handlers(self) -> Mapping[str, Handler]:
        """Return handlers by path; the path names the webhook, see `registrations.paths_by_hook_name`.

        The path of a new webhook begins with `/<name>/`, so that it collides with no other scheduler's. For objects of
        any size see `Endpoint`.
        """

    async def run(self) -> None:
        """Maintain the caches, forever; there are none by default. Until they have synced, handlers allow all requests.

        Raises:
            AbsentError: the scheduler's kinds are not served. `run` is retried until they are.
            ApiError: RBAC forbids reading them. `run` is retried until it allows that.
        """
        await asyncio.Event().wait()


def load(name: str) -> type[SchedulerWebhooks]:
    """Import the webhook part of the adapter `name`.

    Raises:
        NotFoundError: no installed distribution offers it.
        AdapterLoadError: it cannot be imported, or lacks a member.
    """
    loaded: type[SchedulerWebhooks] = load_class(name, GROUP, MEMBERS, "cedana_sched_webhooks/schedulers.py")
    return loaded


async def keep_running(webhooks: SchedulerWebhooks) -> None:
    """Run it, forever; on failure, log the problem once and retry.

    A failure does not affect the other webhooks: the scheduler is absent, or RBAC does not cover a kind yet, as during
    an upgrade.
    """
    logged = ""
    while True:
        began = time.monotonic()
        try:
            await run_in_own_task(webhooks.run())
        except* ApiError as group:
            if time.monotonic() - began > WELL_SECONDS:
                logged = ""
            problem = _first_error_message(group)
            write_log = log.debug if problem == logged else log.warning
            write_log("scheduler's objects not read, trying again", adapter=webhooks.name, error=problem)
            logged = problem
        await asyncio.sleep(PAUSE_SECONDS)


def _first_error_message(group: BaseExceptionGroup[ApiError]) -> str:
    """Return the message of the first error, with its remedy."""
    error = group.exceptions[0]
    return _first_error_message(error) if isinstance(error, BaseExceptionGroup) else str(error)
