"""Annotation on a pod whose eviction is requested: by its scheduler, or by another client.

A client whose request is refused leaves no trace of the request. The component that refuses it (a webhook, a
scheduler's extender) therefore records the request on the pod, and refreshes the record every `REFRESH_SECONDS` while
the client retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from cedana_sched.model.objects import names

REFRESH_SECONDS = 3.0
STALE_SECONDS = 12.0
"""A request not repeated for this long has been withdrawn. Schedulers retry about once a second; kube-scheduler backs
off for up to 10 s after ten attempts."""


class EvictionMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pending eviction request. Times are RFC 3339; `since` identifies the request while it lasts."""

    by: str
    """The user who requested the eviction."""
    since: str
    last: str
    cause: str = ""
    """Reason of the `DisruptionTarget` that the client would have written; empty: a scheduler's."""
    budget: str = ""
    """Name of the PodDisruptionBudget that counts the pod; empty: none."""

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the scheduler still retries."""
        return self.seconds_left(now) > 0

    def seconds_left(self, now: datetime) -> float:
        """Return seconds until the mark is stale. Clock skew shortens the time, also for a mark from the future."""
        return STALE_SECONDS - abs((now - datetime.fromisoformat(self.last)).total_seconds())

    def seconds_requested(self, now: datetime) -> float:
        """Return seconds since the scheduler's first request."""
        return max(0.0, (now - datetime.fromisoformat(self.since)).total_seconds())


def read_mark(annotations: Mapping[str, str], key: str = names.EVICTION_REQUESTED) -> EvictionMark | None:
    """Parse the mark; None if absent, or not written by `serialized_mark`.

    Times must have exactly the format of `serialized_mark`: `since` becomes part of uids, and Python parses any number
    of digits.
    """
    text = annotations.get(key)
    if text is None:
        return None
    try:
        mark = msgspec.json.decode(text, type=EvictionMark)
        is_ours = all(_format_timestamp(datetime.fromisoformat(moment)) == moment for moment in (mark.since, mark.last))
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return mark if is_ours else None


def refreshed_mark(
    earlier: EvictionMark | None, by: str, now: datetime, *, cause: str = "", budget: str = ""
) -> EvictionMark | None:
    """Return the mark to write; None while the existing mark needs no refresh."""
    if earlier is None or not earlier.is_fresh(now):
        return EvictionMark(by, _format_timestamp(now), _format_timestamp(now), cause, budget)
    if (now - datetime.fromisoformat(earlier.last)).total_seconds() < REFRESH_SECONDS:
        return None
    return msgspec.structs.replace(earlier, last=_format_timestamp(now))


def serialized_mark(mark: EvictionMark) -> str:
    """Serialize for the annotation."""
    return msgspec.json.encode(mark).decode()


def _format_timestamp(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds")
