"""Interpretation of the names in a snapshots folder: which generations are committed, and which numbers are used up.

A generation is committed when its manifest exists. Without conditional create, two manifests of one generation may
exist for a moment: the one with the earlier date of the store counts, on a tie the one with the smaller name, and its
writer detects that by listing again (`commit.py`).

A client that may write into a workload's folder can create any number of files: the newest `MOST_GENERATIONS` of one
workload are read, and omissions are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import structlog

from cedana_sched.model.errors import StoreDeniedError
from cedana_sched.model.identity import LARGEST_GENERATION, Identity, SnapshotRef
from cedana_sched.store import layout
from cedana_sched.store.backend import Entry

MOST_GENERATIONS: Final = 1_000
"""Per workload. Their headers are read before a dump."""
_WHO = "find out who could write them there"

_log = structlog.get_logger(__name__)


class Generations(NamedTuple):
    """Contents of a snapshots folder: the manifests that count, by reference, and the numbers that are used up."""

    committed: dict[SnapshotRef, Entry]
    removed: set[SnapshotRef]

    def latest_committed_of(self, identity: Identity) -> SnapshotRef | None:
        return max((ref for ref in self.committed if ref.identity == identity), default=None)

    def next_number(self, identity: Identity) -> int:
        """Return the number of the next generation.

        Raises:
            StoreDeniedError: the last number that a name can express is used up.
        """
        used = (ref.generation for ref in (*self.committed, *self.removed) if ref.identity == identity)
        number = max(used, default=0) + 1
        if number > LARGEST_GENERATION:
            sentence = f"{identity} has a generation {LARGEST_GENERATION}, and none can come after it"
            raise StoreDeniedError(
                sentence,
                remedy=f"remove it from {layout.identity_folder(identity)}/, and find out who could write it there",
            )
        return number


def parse_generations(entries: Iterable[Entry]) -> Generations:
    """Interpret a listing of a snapshots folder."""
    found = _GenerationCollector()
    for entry in entries:
        found.add(entry)
    return found.to_generations()


def newest_generations(identity: Identity, listed: Callable[[], Iterable[Entry]]) -> Generations:
    """Interpret a listing of one identity's folder, its newest generations only, in bounded memory.

    `listed` starts a listing; it is called again if there are more files. The greatest number is always included.
    """
    found = _GenerationCollector()
    for entry in listed():
        found.add(entry)
        found.keep_newest()
    if found.is_cut:
        for entry in listed():
            found.add_tombstone_of_kept(entry)
    if found.passed_over:
        _log.warning(
            "generations_passed_over",
            identity=str(identity),
            kept=len(found.committed),
            passed_over=found.passed_over,
            remedy=too_many_generations_remedy(identity),
        )
    return found.to_generations()


def too_many_generations_remedy(identity: Identity) -> str:
    """Return the remedy for more generations of a workload than are read."""
    return f"remove foreign objects below {layout.identity_folder(identity)}/, and {_WHO}"


class _GenerationCollector:
    def __init__(self) -> None:
        self.committed: dict[SnapshotRef, Entry] = {}
        self._removed: set[SnapshotRef] = set()
        self.passed_over = 0
        """Number of manifests held."""
        self.is_cut = False
        """Whether anything was omitted, also mere tombstones."""

    def add(self, entry: Entry) -> None:
        file = layout.parse_generation_key(entry.key)
        if file is None or file.kind == "claim":
            return
        ref = file.ref
        if file.kind == "removed":
            self._removed.add(ref)
        elif ref not in self.committed or _precedence(entry) < _precedence(self.committed[ref]):
            self.committed[ref] = entry

    def add_tombstone_of_kept(self, entry: Entry) -> None:
        file = layout.parse_generation_key(entry.key)
        if file is not None and file.kind == "removed" and file.ref in self.committed:
            self._removed.add(file.ref)

    def keep_newest(self) -> None:
        """Drop the excess, from time to time."""
        if len(self.committed) > 2 * MOST_GENERATIONS:
            self.passed_over += len(self.committed) - MOST_GENERATIONS
            self.committed = {ref: self.committed[ref] for ref in _newest_within_limit(self.committed)}
            self.is_cut = True
        if len(self._removed) > 2 * MOST_GENERATIONS:
            self._removed = set(_newest_within_limit(self._removed))
            self.is_cut = True

    def to_generations(self) -> Generations:
        committed = {ref: entry for ref, entry in self.committed.items() if ref not in self._removed}
        return Generations(committed, self._removed)


def _newest_within_limit(refs: Iterable[SnapshotRef]) -> list[SnapshotRef]:
    return sorted(refs, reverse=True)[:MOST_GENERATIONS]


def _precedence(entry: Entry) -> tuple[bool, float, str]:
    """Return the sort key: manifests of a conditional create have no writer, and precede all others."""
    file = layout.parse_generation_key(entry.key)
    return (file is not None and file.writer is not None, entry.modified, entry.key)
