"""How the test cluster says that something went wrong: one line with what, where its log is, and what to do."""

from __future__ import annotations

from pathlib import Path


class ClusterError(Exception):
    """A part of the test cluster cannot do its work.

    Args:
        what: one sentence, with the names and values that matter.
        remedy: what the person does about it, in one sentence.
        log: the file that tells more, when there is one.
    """

    def __init__(self, what: str, *, remedy: str, log: Path | None = None) -> None:
        self.what = what
        self.remedy = remedy
        self.log = log
        super().__init__(str(self))

    def __str__(self) -> str:
        log = f" (log: {self.log})" if self.log else ""
        return f"{self.what}{log}; {self.remedy}"
