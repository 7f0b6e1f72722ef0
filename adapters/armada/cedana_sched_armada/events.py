"""What a job set's event stream says, as far as it concerns us."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from armada_client.armada.event_pb2 import EventMessage, EventStreamMessage
from armada_client.armada.submit_pb2 import Job

EARLIER_SECONDS = 60.0
"""The clocks of Armada's servers, of its event store and ours may differ by this much."""
ULID_TIME_DIGITS = 10
_CROCKFORD = {digit: value for value, digit in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}


class JobSet(msgspec.Struct, frozen=True, order=True):
    """Where a job belongs; its events are in one stream."""

    queue: str
    name: str

    def __str__(self) -> str:
        return f"{self.queue}/{self.name}"


class Kind(StrEnum):
    """What an event means to us."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    PREEMPTED = "preempted"
    CANCEL_ASKED = "cancel asked"
    """Somebody named this very job."""
    SET_CANCELLED = "job set cancelled"
    """It goes with its job set, whose cancellation has no event of its own."""
    CANCELLED = "cancelled"
    RETURNED = "returned"
    """This run is over, the job may run again."""
    OVER = "over"
    """Succeeded or failed, or rejected."""


class Heard(msgspec.Struct, frozen=True):
    """One event. `id` is where a stream goes on after it, `at` seconds since the epoch."""

    id: str
    kind: Kind
    job: str
    at: float = 0.0
    run: str = ""
    reason: str = ""
    pod: str = ""
    """Uid of the run's pod, where Armada names it."""
    preemptor: str = ""
    """Id of the job that takes the place, where Armada names one."""
    submitted: Job | None = None
    """With SUBMITTED: what was submitted, with the server's defaults in it."""


_KINDS = {
    "submitted": Kind.SUBMITTED,
    "running": Kind.RUNNING,
    "preempted": Kind.PREEMPTED,
    "cancelling": Kind.CANCEL_ASKED,
    "cancelled": Kind.CANCELLED,
    "lease_returned": Kind.RETURNED,
    "lease_expired": Kind.RETURNED,
    "succeeded": Kind.OVER,
    "failed": Kind.OVER,
}


def read_event(told: EventStreamMessage) -> Heard | None:
    """None where it does not concern us: it was queued, leased, uses so much memory."""
    message: EventMessage = told.message
    name = message.WhichOneof("events")
    kind = _KINDS.get(name or "")
    if name is None or kind is None:
        return None
    event = getattr(message, name)
    if kind is Kind.CANCEL_ASKED and not event.requestor:
        kind = Kind.SET_CANCELLED  # the scheduler says it itself, of each job that it cancels with its job set
    if name == "failed" and event.retryable:
        kind = Kind.RETURNED
    return Heard(
        id=told.id,
        kind=kind,
        job=event.job_id,
        at=event.created.seconds + event.created.nanos / 1e9,
        run=getattr(event, "run_id", ""),
        reason=getattr(event, "reason", ""),
        pod=getattr(event, "kubernetes_id", ""),
        preemptor=getattr(event, "preempting_job_id", ""),
        submitted=event.job if kind is Kind.SUBMITTED else None,
    )


def id_at(seconds: float) -> str:
    """Where a stream stood then: ids are `milliseconds:sequence:part:last` (Armada's server/event/sequence)."""
    return f"{max(int(seconds * 1000), 0)}:0:0:1"


def id_before(seconds: float) -> str:
    """Where a stream surely stood before that moment, of whichever clock it is."""
    return id_at(seconds - EARLIER_SECONDS)


def position(identifier: str) -> tuple[int, ...]:
    """Ids in the order of their events; the beginning for what is none."""
    try:
        return tuple(map(int, identifier.split(":")[:3]))
    except ValueError:
        return ()


def submitted_at(job: str) -> float:
    """When a job was submitted, in seconds since the epoch: job ids are ULIDs. 0 where this one is none."""
    milliseconds = 0
    for digit in job[:ULID_TIME_DIGITS].lower():
        if digit not in _CROCKFORD:
            return 0.0
        milliseconds = milliseconds * 32 + _CROCKFORD[digit]
    return milliseconds / 1000
