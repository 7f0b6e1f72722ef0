"""What one check of the doctor says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from cedana_sched.model.errors import CedanaSchedError


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"
    """The product works; something that is named does not, or not as well."""
    FAIL = "fail"
    """The product does not work on this machine as it is."""


class Finding(msgspec.Struct, frozen=True):
    """One line: what was looked at, how it is, and what to do about it."""

    check: str
    level: Level
    says: str
    remedy: str = ""


def checked(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of `look`; an error of ours that ends it is a finding too."""
    found: list[Finding] = []
    try:
        found.extend(look())
    except CedanaSchedError as error:
        found.append(Finding(check, Level.FAIL, error.message, error.remedy))
    return found
