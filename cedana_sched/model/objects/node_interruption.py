"""Annotation of a node that is about to be interrupted: a spot notice, maintenance, a shutdown, a raised risk.

An agent writes it on its own node, and an admin may by hand. So reading validates it completely.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names

LONGEST_TEXT: Final = 512
"""Characters of the annotation; a longer one is not ours."""
_REMEDY: Final = (
    "write source, kind, notBefore and observed, with times such as 2026-11-28T10:02:00.000+00:00, or remove it"
)


class InterruptionSource(StrEnum):
    """The provider whose metadata server has the notice, or the kubelet."""

    AWS = "aws"
    GCP = "gcp"
    AZURE = "azure"
    KUBELET = "kubelet"


class InterruptionKind(StrEnum):
    """What happens to the node."""

    TERMINATION = "Termination"
    """The machine ends: its spot capacity is reclaimed, or it is deleted."""
    MAINTENANCE = "Maintenance"
    """The machine restarts, or is moved to other hardware: its memory is lost."""
    SHUTDOWN = "Shutdown"
    """The machine is shut down, and the kubelet ends its pods already."""
    RISK = "Risk"
    """The provider is likely to need the capacity soon; there may never be a termination."""


class NodeInterruption(msgspec.Struct, frozen=True, rename="camel"):
    """One notice. Times are RFC 3339."""

    source: InterruptionSource
    kind: InterruptionKind
    not_before: str | None
    """When the node ends at the earliest; None if unknown: it may be now."""
    observed: str
    """When the agent first read the notice."""

    @classmethod
    def from_times(
        cls, source: InterruptionSource, kind: InterruptionKind, not_before: datetime | None, observed: datetime
    ) -> NodeInterruption:
        """Build a notice; `not_before` as the field."""
        return cls(source, kind, None if not_before is None else _format_time(not_before), _format_time(observed))

    @property
    def ends_node(self) -> bool:
        """Whether the node certainly ends."""
        return self.kind is not InterruptionKind.RISK

    @property
    def ends_at(self) -> float | None:
        """When the node ends at the earliest, in seconds since the epoch; None if unknown."""
        return None if self.not_before is None else datetime.fromisoformat(self.not_before).timestamp()

    @property
    def key(self) -> str:
        """Differs between notices, and is part of uids and of marks."""
        return notice_key(self.source, self.kind, self.not_before or self.observed)

    def is_same_notice(self, other: NodeInterruption | None) -> bool:
        """Whether only the times of observation differ, so that both are one notice, read twice."""
        return other is not None and self == msgspec.structs.replace(other, observed=self.observed)


def notice_key(*texts: str) -> str:
    """Return the key of the notice with these texts; part of a uid, or of an annotation's value."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def left_out_mark(key: str) -> str:
    """Return the value of `names.NOT_PREEMPTED` of a pod that is not saved from the shutdown with this key."""
    return f"{names.LEFT_OUT}{key}"


def most_urgent(interruptions: Iterable[NodeInterruption]) -> NodeInterruption | None:
    """Return the notice to act on: a certain end before a risk, then the earliest; an unknown time may be now.

    A shutdown is the end that was announced for the time when it began, or earlier, or for an unknown time: the kubelet
    ends the pods already, and says how much time is left.
    """
    known = tuple(interruptions)
    begun = [_observed_at(one) for one in known if one.kind is InterruptionKind.SHUTDOWN]
    return min(
        (one for one in known if not any(_has_become_shutdown(one, at) for at in begun)), key=_urgency, default=None
    )


def _has_become_shutdown(interruption: NodeInterruption, begun_at: float) -> bool:
    ends_at = interruption.ends_at
    return interruption.kind is not InterruptionKind.SHUTDOWN and (ends_at is None or ends_at <= begun_at)


def _urgency(interruption: NodeInterruption) -> tuple[bool, float, str]:
    ends_at = interruption.ends_at
    observed_at = _observed_at(interruption)
    return not interruption.ends_node, observed_at if ends_at is None else ends_at, interruption.source


def _observed_at(interruption: NodeInterruption) -> float:
    return datetime.fromisoformat(interruption.observed).timestamp()


def read_interruption(annotations: Mapping[str, str]) -> NodeInterruption | None:
    """Parse the annotation; None if absent, or not of the format of `serialized_interruption`."""
    with suppress(UsageError):
        return parse_interruption(annotations)
    return None


def parse_interruption(annotations: Mapping[str, str]) -> NodeInterruption | None:
    """Parse the annotation; None if absent.

    Times must have exactly the format of `serialized_interruption`: Python parses any number of digits.

    Raises:
        UsageError: it does not have the format of `serialized_interruption`.
    """
    text = annotations.get(names.NODE_INTERRUPTION)
    if text is None:
        return None
    if len(text) > LONGEST_TEXT:
        raise _invalid(text, f"is longer than {LONGEST_TEXT} characters")
    try:
        read = msgspec.json.decode(text, type=NodeInterruption)
        times = {"observed": read.observed} | ({} if read.not_before is None else {"notBefore": read.not_before})
        for name, moment in times.items():
            if _format_time(datetime.fromisoformat(moment)) != moment:
                raise _invalid(text, f"has another format of time in {name}")
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise _invalid(text, f"is no notice of interruption: {error}") from error
    return read


def _invalid(text: str, problem: str) -> UsageError:
    field = f"metadata.annotations[{names.NODE_INTERRUPTION}]"
    return UsageError(field, text[:LONGEST_TEXT], problem, remedy=_REMEDY)


def serialized_interruption(interruption: NodeInterruption) -> str:
    """Serialize for the annotation."""
    return msgspec.json.encode(interruption).decode()


def _format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")
