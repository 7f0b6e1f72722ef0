"""A CRIU failure in plain words: what its log means, and what to do about it.

CRIU's own log is written for its authors. This finds the line that decided, says it in a sentence with a remedy, and
keeps the last lines as evidence. What the table does not know is reported with CRIU's own first error.

Called by `dump` and `restore` for every failure.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from cedana_sched.model.errors import EVIDENCE_LINES
from cedana_sched.snapshot.failures import FAILURES

_NOISE = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE"  # harmless: CRIU wants more descriptors than it is allowed
    r"|Dumping FAILED|Restoring FAILED|Unable to open .*kdat"
    r"|cgroupd: recv req error"  # a helper's farewell, after whatever went wrong
)
_STAMP = re.compile(r"^\(\d+\.\d+\)\s*(?:\d+:\s*)?")
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True)
class Explanation:
    """The sentence, what to do, and CRIU's own last lines."""

    message: str
    remedy: str
    evidence: tuple[str, ...]
    passes: bool = False
    """Whether the same may succeed in a moment, without anybody changing anything."""


def explain(log: Path, status: int, stderr: Path | None = None) -> Explanation:
    """Explain how CRIU ended.

    Args:
        log: CRIU's log file; may be missing if CRIU never began.
        status: its exit status as `subprocess` tells it, negative for a signal.
        stderr: what it said on its standard error, where it complains before the log is open.
    """
    lines = _tail(log) + (_tail(stderr) if stderr else [])
    return explain_lines(lines, status)


def explain_lines(lines: list[str], status: int) -> Explanation:
    """`explain` for a log that is already read."""
    errors = [line for line in lines if re.search(r"\bError\b", line) and not _NOISE.search(line)]
    evidence = tuple((errors + [line for line in lines[-4:] if line not in errors])[:EVIDENCE_LINES])
    # The first match in the order of the table: causes stand before the errors that follow from them.
    text = "\n".join(errors)
    for failure in FAILURES:
        if found := failure.pattern.search(text):
            return Explanation(failure.say(found), failure.remedy, evidence, failure.passes)
    if status < 0:
        name = signal.Signals(-status).name
        remedy = "look for the out-of-memory killer in the kernel's log, then try again"
        return Explanation(f"CRIU was killed by {name}", remedy, evidence)
    first = _STAMP.sub("", errors[0]) if errors else f"CRIU ended with status {status} and said nothing"
    return Explanation(first, "see CRIU's own lines", evidence)


def last_lines(log: Path) -> tuple[str, ...]:
    """The end of a log, as evidence for what CRIU itself does not know."""
    return tuple(_tail(log)[-EVIDENCE_LINES:])


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
