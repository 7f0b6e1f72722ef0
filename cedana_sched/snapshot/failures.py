"""The table of CRIU's error lines that people meet, each with its meaning and its remedy.

The order matters: causes stand before the errors that follow from them. Patterns are of CRIU 4.2's sources; the unit
tests hold excerpts of real logs. Read by `explain`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """One line of CRIU's log; groups of the pattern fill the sentence."""

    pattern: re.Pattern[str]
    sentence: str
    remedy: str

    def say(self, found: re.Match[str]) -> str:
        """The sentence about this very occurrence."""
        return self.sentence.format(**{key: value or "?" for key, value in found.groupdict().items()})


def _failure(pattern: str, sentence: str, remedy: str) -> Failure:
    return Failure(re.compile(pattern), sentence, remedy)


FAILURES = (
    _failure(
        r"Can't get rlimit \d+: Operation not permitted",
        "CRIU may not read the limits of a process of another user here",
        "root of this machine lacks CAP_SYS_RESOURCE: give it that capability, or install gcc so that the suite can "
        "work around it",
    ),
)
