"""Relevant events of a job set's event stream."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from armada_client.armada.event_pb2 import EventMessage, EventStreamMessage
from armada_client.armada.submit_pb2 import Job

EARLIER_SECONDS = 60.0
"""Maximum clock skew between Armada's servers, its event store and us."""
ULID_TIME_DIGITS = 10
_CROCKFORD = {digit: value for value, digit in enumerate("0123456789abcdefghjkmnpqrstvwxyz")}


class JobSet(msgspec.Struct, frozen=True, order=True):
    """The job set of a job; its events are in one stream."""

    queue: str
    name: str

    def __str__(self) -> str:
        return f"{self.queue}/{self.name}"


class Kind(StrEnum):
    """Meaning of an event to this adapter."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    PREEMPTED = "preempted"
    CANCEL_REQUESTED = "cancel requested"
    """A user cancelled this very job."""
    SET_CANCELLED = "job set cancelled"
    """Cancelled with its job set, whose cancellation has no event of its own."""
    CANCELLED = "cancelled"
    RETURNED = "returned"
    """This run ended, the job may run again."""
    OVER = "over"
    """Succeeded, failed or rejected."""


class JobEvent(msgspec.Struct, frozen=True):
    """One event. `id` is its stream position, `at` seconds since the epoch."""

    id: str
    kind: Kind
    job: str
    at: float = 0.0
    run: str = ""
    reason: str = ""
    pod: str = ""
    """Uid of the run's pod, if the event has it."""
    preemptor: str = ""
    """Id of the preempting job, if the event has it."""
    submitted: Job | None = None
    """For SUBMITTED: the submission, with the server's defaults."""


_KINDS = {
    "submitted": Kind.SUBMITTED,
    "running": Kind.RUNNING,
    "preempted": Kind.PREEMPTED,
    "cancelling": Kind.CANCEL_REQUESTED,
    "cancelled": Kind.CANCELLED,
    "lease_returned": Kind.RETURNED,
    "lease_expired": Kind.RETURNED,
    "succeeded": Kind.OVER,
    "failed": Kind.OVER,
}


def read_event(received: EventStreamMessage) -> JobEvent | None:
    """Convert a stream message; None if it is irrelevant: queued, leased, utilisation."""
    message: EventMessage = received.message
    name = message.WhichOneof("events")
    kind = _KINDS.get(name or "")
    if name is None or kind is None:
        return None
    event = getattr(message, name)
    if kind is Kind.CANCEL_REQUESTED and not event.requestor:
        kind = Kind.SET_CANCELLED  # the scheduler cancels each job of a cancelled job set without a requestor
    if name == "failed" and event.retryable:
        kind = Kind.RETURNED
    return JobEvent(
        id=received.id,
        kind=kind,
        job=event.job_id,
        at=event.created.seconds + event.created.nanos / 1e9,
        run=getattr(event, "run_id", ""),
        reason=getattr(event, "reason", ""),
        pod=getattr(event, "kubernetes_id", ""),
        preemptor=getattr(event, "preempting_job_id", ""),
        submitted=event.job if kind is Kind.SUBMITTED else None,
    )


def event_id_at(seconds: float) -> str:
    """Return the position at a time; ids are `milliseconds:sequence:part:last` (Armada's server/event/sequence)."""
    return f"{max(int(seconds * 1000), 0)}:0:0:1"


def id_before(seconds: float) -> str:
    """Return a stream position certainly before that time, whichever clock it is from."""
    return event_id_at(seconds - EARLIER_SECONDS)


def event_position_key(identifier: str) -> tuple[int, ...]:
    """Return a sort key of event ids; the lowest for an invalid id."""
    try:
        return tuple(map(int, identifier.split(":")[:3]))
    except ValueError:
        return ()


def submission_time_of_job(job: str) -> float:
    """Return a job's submission time in seconds since the epoch, from its ULID; 0 if the id is no ULID."""
    milliseconds = 0
    for digit in job[:ULID_TIME_DIGITS].lower():
        if digit not in _CROCKFORD:
            return 0.0
        milliseconds = milliseconds * 32 + _CROCKFORD[digit]
    return milliseconds / 1000
