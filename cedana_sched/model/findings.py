"""What a check says: of a machine, of a cluster, of a scheduler's configuration."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARN = "warn"
    """The product works; something that is named does not, or not as well."""
    FAIL = "fail"
    """The product does not work here as it is."""


class Finding(msgspec.Struct, frozen=True):
    """One line: what was looked at, how it is, and what to do about it."""

    check: str
    level: Level
    says: str
    remedy: str = ""


def printable(text: str) -> str:
    """The text without what a terminal would obey: others write some of it."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
