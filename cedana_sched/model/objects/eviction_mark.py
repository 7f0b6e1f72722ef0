"""The mark on a pod that its scheduler wants to evict: how those who hear it tell those who act on it.

A scheduler that is refused leaves no trace of its wish. So whoever refuses it (a webhook, a scheduler's extender)
writes the wish on the pod, and again every `REFRESH_SECONDS` while the scheduler goes on asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from cedana_sched.model.objects import names

REFRESH_SECONDS = 3.0
STALE_SECONDS = 12.0
"""A scheduler that has not asked for so long has chosen otherwise. They ask about once a second; kube-scheduler rests
for up to 10 s after ten times."""


class EvictionMark(msgspec.Struct, frozen=True):
    """Times are RFC 3339; `since` names this wish, as long as it lasts."""

    by: str
    """The user who asked."""
    since: str
    last: str

    def is_fresh(self, now: datetime) -> bool:
        """Whether the scheduler still asks."""
        return self.seconds_left(now) > 0

    def seconds_left(self, now: datetime) -> float:
        """Until it is stale. One of the future is nobody's: that a clock is a little ahead counts against it."""
        return STALE_SECONDS - abs((now - datetime.fromisoformat(self.last)).total_seconds())

    def waited(self, now: datetime) -> float:
        """Seconds since the scheduler has asked first."""
        return max(0.0, (now - datetime.fromisoformat(self.since)).total_seconds())


def read_mark(annotations: Mapping[str, str]) -> EvictionMark | None:
    """None where there is none, or where somebody else wrote something else.

    Times must stand as `written` writes them: `since` becomes a part of uids, and Python reads any number of digits.
    """
    text = annotations.get(names.EVICTION_REQUESTED)
    if text is None:
        return None
    try:
        mark = msgspec.json.decode(text, type=EvictionMark)
        is_ours = all(_text(datetime.fromisoformat(moment)) == moment for moment in (mark.since, mark.last))
    except (ValueError, ArithmeticError, RecursionError):
        return None
    return mark if is_ours else None


def asked_now(earlier: EvictionMark | None, by: str, now: datetime) -> EvictionMark | None:
    """The mark that is to be written; None where the one that stands is good for a while."""
    if earlier is None or not earlier.is_fresh(now):
        return EvictionMark(by, _text(now), _text(now))
    if (now - datetime.fromisoformat(earlier.last)).total_seconds() < REFRESH_SECONDS:
        return None
    return msgspec.structs.replace(earlier, last=_text(now))


def written(mark: EvictionMark) -> str:
    """As it stands in the annotation."""
    return msgspec.json.encode(mark).decode()


def _text(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds")
