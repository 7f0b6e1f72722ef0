"""Annotation of a node that its agent is to leave. The uninstallation writes it, and an admin to remove one node."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names

_FIELD: Final = f"metadata.annotations[{names.UNINSTALL}]"
_REMEDY: Final = "write a time that is to come, with its zone, such as 2026-11-28T10:02:00Z, or remove it"
_LONGEST: Final = 64
"""Characters of the value that an error shows."""


def serialized_uninstall_mark(until: datetime) -> str:
    """Serialize for the annotation; the mark has no effect after `until`."""
    return until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_uninstall_mark(annotations: Mapping[str, str], now: datetime) -> datetime | None:
    """Return the moment after which the mark has no effect; None if there is no mark.

    Raises:
        UsageError: it is no RFC 3339 time, or is over.
    """
    text = annotations.get(names.UNINSTALL)
    if text is None:
        return None
    try:
        written = datetime.fromisoformat(text)
        until = written.astimezone(UTC)
    except (ValueError, ArithmeticError) as error:
        raise _invalid(text, "is no time of RFC 3339") from error
    if written.tzinfo is None:
        raise _invalid(text, "has no time zone")
    if until <= now:
        raise _invalid(text, "is over: the agent stays on the node")
    return until


def _invalid(text: str, problem: str) -> UsageError:
    return UsageError(_FIELD, text[:_LONGEST], problem, remedy=_REMEDY)
