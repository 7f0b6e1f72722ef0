"""Findings of the doctor's checks, including checks that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched.model.errors import CedanaSchedError

__all__ = ["Finding", "Level", "run_check"]


def run_check(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of `look`; a `CedanaSchedError` that ends the check is a finding too."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except CedanaSchedError as error:
        found.append(Finding(check, Level.FAIL, error.message, error.remedy))
    return found
