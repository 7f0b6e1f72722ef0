"""What a scheduler's adapter adds to the webhooks: admission calls of its own kinds, and what they must know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Protocol, Self

import structlog

from cedana_sched.adapter.registry import load_class
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError
from cedana_sched.service.cancellation import run_apart
from cedana_sched_webhooks.admission import Answer, Request, Shape
from cedana_sched_webhooks.configuration import Configuration

log = structlog.get_logger(__name__)

GROUP = "cedana_sched.webhooks"
"""Entry point group; the names are the adapters'."""
MEMBERS = ("name", "connect", "handlers", "run")
PAUSE_SECONDS = 10.0
WELL_SECONDS = 60.0
"""After a run as long as this a problem is a new one, and said again."""

Handler = Callable[[Request], Awaitable[Answer]]


class Endpoint:
    """A handler that looks at a part of objects: they are decoded no further. Any other one gets them whole."""

    def __init__(self, answer: Handler, shape: Shape) -> None:
        self.answer = answer
        self.shape = shape

    async def __call__(self, request: Request) -> Answer:
        return await self.answer(request)


class SchedulerWebhooks(Protocol):
    """What is registered under an adapter's name."""

    name: ClassVar[str]

    @classmethod
    def connect(cls, api: Api, configuration: Configuration) -> Self:
        """Make it; nothing is asked of the API server yet."""
        ...

    def handlers(self) -> Mapping[str, Handler]:
        """Who answers, by path; each path begins with `/<name>/`. See `Endpoint`, also for objects of any size."""
        ...

    async def run(self) -> None:
        """Keep what it knows, for ever. Until it knows anything, it lets everything pass.

        Raises:
            AbsentError: the scheduler's kinds are not served. It is run again later, until they are.
            ApiError: we may not read them. It is run again later, until we may.
        """
        ...


def load(name: str) -> type[SchedulerWebhooks]:
    """Import the part of the adapter called `name`.

    Raises:
        NotFoundError: no installed distribution offers it.
        AdapterLoadError: it cannot be imported, or lacks something.
    """
    loaded: type[SchedulerWebhooks] = load_class(name, GROUP, MEMBERS, "cedana_sched_webhooks/schedulers.py")
    return loaded


async def keep_running(webhooks: SchedulerWebhooks) -> None:
    """Run it, for ever; while it cannot know its scheduler's objects, say so once and try again.

    That must not cost the others: the scheduler is absent, or our rights do not cover a kind yet, as in an upgrade.
    """
    said = ""
    while True:
        began = time.monotonic()
        try:
            await run_apart(webhooks.run())
        except* ApiError as group:
            if time.monotonic() - began > WELL_SECONDS:
                said = ""
            problem = _first(group)
            tell = log.debug if problem == said else log.warning
            tell("scheduler's objects not read, trying again", adapter=webhooks.name, problem=problem)
            said = problem
        await asyncio.sleep(PAUSE_SECONDS)


def _first(group: BaseExceptionGroup[ApiError]) -> str:
    """With what to do about it."""
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else str(error)
