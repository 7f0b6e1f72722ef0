"""Notices of Azure for the node's own virtual machine: Scheduled Events, and their approval.

Source: Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs". There is no watch: Azure
recommends to poll every second. Events of a scale set or an availability set list several machines. A `Freeze` pauses
the machine for some seconds and loses nothing, so that it is no notice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec
import structlog

from cedana_sched.cluster.node.interruptions.metadata_server import (
    REQUEST_SECONDS,
    MetadataAnswer,
    MetadataError,
    MetadataServer,
)
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch, Now
from cedana_sched.model.objects.node_interruption import (
    InterruptionKind,
    InterruptionSource,
    NodeInterruption,
    most_urgent,
)

log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 1.0
EVENTS_PATH: Final = "/metadata/scheduledevents?api-version=2020-07-01"
MACHINE_PATH: Final = "/metadata/instance/compute?api-version=2021-02-01"
METADATA_HEADER: Final = {"Metadata": "true"}
FIRST_SECONDS: Final = 130.0
"""Limit of the first request, which enables Scheduled Events for the machine, and may take two minutes."""

_KINDS: Final = {
    "Preempt": InterruptionKind.TERMINATION,
    "Terminate": InterruptionKind.TERMINATION,
    "Reboot": InterruptionKind.MAINTENANCE,
    "Redeploy": InterruptionKind.MAINTENANCE,
}


class Machine(msgspec.Struct, frozen=True, rename="camel"):
    """The virtual machine; `name` is as events list it."""

    name: str
    vm_id: str


class ScheduledEvent(msgspec.Struct, frozen=True, rename="pascal"):
    """One event; `not_before` is empty once it has started."""

    event_id: str
    event_type: str
    event_status: str
    resources: tuple[str, ...] = ()
    not_before: str = ""


class ScheduledEvents(msgspec.Struct, frozen=True, rename="pascal"):
    """The document of all events."""

    events: tuple[ScheduledEvent, ...]


class AzureMachine:
    """The node's virtual machine and its events.

    Args:
        server: the metadata server.
        now: the current time.
        has_pods: whether pods run on the node that end with it; an event is approved once none does.
    """

    def __init__(self, server: MetadataServer, now: Now, has_pods: Callable[[], Awaitable[bool]]) -> None:
        self._server = server
        self._now = now
        self._has_pods = has_pods
        self._name = ""
        self._is_enabled = False
        self._approved: frozenset[str] = frozenset()

    async def read_and_approve(self) -> NodeInterruption | None:
        """Return the machine's most urgent event, and approve those that have nothing left to wait for.

        Raises:
            MetadataError: the server does not answer what Azure documents.
        """
        if not self._name:
            self._name = (await read_machine(self._server)).name
        seconds = REQUEST_SECONDS if self._is_enabled else FIRST_SECONDS
        answer = await self._server.request(EVENTS_PATH, METADATA_HEADER, seconds=seconds)
        self._is_enabled = True
        events = parse_events(answer, self._name)
        now = self._now()
        notice = most_urgent(parse_notice(event, now) for event in events)
        await self._approve(events)
        return notice

    async def _approve(self, events: tuple[ScheduledEvent, ...]) -> None:
        """Let events start now, so that the machine does not idle until they do.

        The approval of an event is one for all its machines, of which others may still save their pods.
        """
        present = frozenset(
            one.event_id for one in events if one.event_status == "Scheduled" and len(one.resources) == 1
        )
        self._approved &= present
        missing = sorted(present - self._approved)
        if not missing or await self._has_pods():
            return
        body = {"StartRequests": [{"EventId": event_id} for event_id in missing]}
        answer = await self._server.request(EVENTS_PATH, METADATA_HEADER, method="POST", json=body)
        answer.require(200)
        log.info("events approved: no pods are left on the node", events=missing)
        self._approved = present


async def read_machine(server: MetadataServer) -> Machine:
    """Return the machine that the server describes.

    Raises:
        MetadataError: the server is none of Azure.
    """
    answer = await server.request(MACHINE_PATH, METADATA_HEADER)
    answer.require(200)
    machine = answer.decode(Machine)
    if not machine.name or not machine.vm_id:
        raise MetadataError(f"{answer.url} answers no virtual machine of Azure")
    return machine


def azure_watches(server: MetadataServer, now: Now, has_pods: Callable[[], Awaitable[bool]]) -> tuple[NoticeWatch, ...]:
    """Return what to poll of a machine; arguments as of `AzureMachine`."""
    return (NoticeWatch("scheduled events", AzureMachine(server, now, has_pods).read_and_approve, POLL_SECONDS),)


def parse_events(answer: MetadataAnswer, machine: str) -> tuple[ScheduledEvent, ...]:
    """Return the events that interrupt the machine of this name.

    Raises:
        MetadataError: the answer is not what Azure documents.
    """
    answer.require(200)
    events = answer.decode(ScheduledEvents).events
    return tuple(one for one in events if one.event_type in _KINDS and machine in one.resources)


def parse_notice(event: ScheduledEvent, now: datetime) -> NodeInterruption:
    """Return the notice of one of `parse_events`.

    Raises:
        MetadataError: its time is not what Azure documents.
    """
    not_before = _parse_time(event.not_before) if event.not_before else None
    return NodeInterruption.from_times(InterruptionSource.AZURE, _KINDS[event.event_type], not_before, now)


def _parse_time(text: str) -> datetime:
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, ArithmeticError) as error:
        raise MetadataError(f"an event of Azure has no time: {text[:64]!r}") from error
