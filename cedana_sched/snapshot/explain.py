"""Explanations of CRIU failures in plain words, with remedies.

CRIU's own log is written for its authors. This module finds the decisive line, translates it into a sentence with a
remedy, and keeps the last lines as evidence. Unknown failures are reported by CRIU's own first error.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from cedana_sched.model.errors import EVIDENCE_LINES
from cedana_sched.snapshot.criu_failures import FAILURES

_NOISE = re.compile(
    r"rlimit: Can't setup RLIMIT_NOFILE"  # harmless: CRIU requests more descriptors than permitted
    r"|Dumping FAILED|Restoring FAILED|Unable to open .*kdat"
    r"|cgroupd: recv req error"  # a helper's last line, after any failure
)
_STAMP = re.compile(r"^\(\d+\.\d+\)\s*(?:\d+:\s*)?")
_TAIL_BYTES = 256 << 10


@dataclass(frozen=True)
class Explanation:
    """A sentence, a remedy, and CRIU's own last lines."""

    message: str
    remedy: str
    evidence: tuple[str, ...]
    passes: bool = False
    """Whether the failure is transient: a retry may succeed without any change."""


def explain_criu_exit(log: Path, status: int, stderr: Path | None = None) -> Explanation:
    """Explain how CRIU ended.

    Args:
        log: CRIU's log file; may be missing if CRIU never started.
        status: its exit status as in `subprocess`, negative for a signal.
        stderr: its standard error, which has the errors from before the log is open.
    """
    lines = _read_tail(log) + (_read_tail(stderr) if stderr else [])
    return explain_lines(lines, status)


def explain_lines(lines: list[str], status: int) -> Explanation:
    """Explain a log that is already read; see `explain_criu_exit`."""
    errors = [line for line in lines if re.search(r"\bError\b", line) and not _NOISE.search(line)]
    evidence = tuple((errors + [line for line in lines[-4:] if line not in errors])[:EVIDENCE_LINES])
    # the first match in the order of the table: causes precede the errors that follow from them
    text = "\n".join(errors)
    for failure in FAILURES:
        if found := failure.pattern.search(text):
            return Explanation(failure.format_sentence(found), failure.remedy, evidence, failure.passes)
    if status < 0:
        name = signal.Signals(-status).name
        remedy = "look for the out-of-memory killer in the kernel's log, then try again"
        return Explanation(f"CRIU was killed by {name}", remedy, evidence)
    first = _STAMP.sub("", errors[0]) if errors else f"CRIU ended with status {status} and said nothing"
    return Explanation(first, "see CRIU's own lines", evidence)


def last_lines(log: Path) -> tuple[str, ...]:
    """Return the end of a log, as evidence for causes unknown to CRIU itself."""
    return tuple(_read_tail(log)[-EVIDENCE_LINES:])


def _read_tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
