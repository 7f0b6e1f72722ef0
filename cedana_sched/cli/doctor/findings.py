"""Findings of the doctor's checks, including checks that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.findings import Finding, Level

__all__ = ["Finding", "Level", "checked"]


def checked(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of `look`; a `CedanaSchedError` that ends the check is a finding too."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except CedanaSchedError as error:
        found.append(Finding(check, Level.FAIL, error.message, error.remedy))
    return found
