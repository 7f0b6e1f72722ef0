"""Results of diagnostic checks of a machine, a cluster, or a scheduler's configuration."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """The product works; the named feature does not, or is degraded."""
    FAIL = "fail"
    """The product does not work in this state."""


class Finding(msgspec.Struct, frozen=True):
    """One check result: the check, its outcome, and the remedy."""

    check: str
    level: Level
    message: str = msgspec.field(name="says")
    remedy: str = ""


def replace_unprintable(text: str) -> str:
    """Replace unprintable characters: foreign text may contain terminal escape sequences."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
