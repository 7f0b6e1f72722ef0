"""What the names in a snapshots folder say: which numbers are committed, and which are used up.

A generation is committed when its manifest is there. Where the store cannot create conditionally, two manifests of
one generation may exist for a moment: the one that the store dates earlier counts, at the same instant the one with
the smaller name, and its writer finds out by looking again (`commit.py`).

Whoever may write into a workload's folder may lay any number of files there: of one workload the newest
`MOST_GENERATIONS` are kept, and what is passed over is logged.
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
"""Of one workload. Before a dump their headers are read."""
_WHO = "see who could write it there"

_log = structlog.get_logger(__name__)


class Generations(NamedTuple):
    """What a snapshot folder says: manifests that count by reference, and numbers that are used up."""

    committed: dict[SnapshotRef, Entry]
    removed: set[SnapshotRef]

    def latest(self, identity: Identity) -> SnapshotRef | None:
        return max((ref for ref in self.committed if ref.identity == identity), default=None)

    def next_number(self, identity: Identity) -> int:
        """The number of the next generation.

        Raises:
            StoreDeniedError: the last number that a name can say is used up.
        """
        used = (ref.generation for ref in (*self.committed, *self.removed) if ref.identity == identity)
        number = max(used, default=0) + 1
        if number > LARGEST_GENERATION:
            sentence = f"{identity} has a generation {LARGEST_GENERATION}, and none can come after it"
            raise StoreDeniedError(sentence, remedy=f"remove it from {layout.identity_folder(identity)}/, and {_WHO}")
        return number


def generations_of(entries: Iterable[Entry]) -> Generations:
    """What a listing of a snapshots folder says."""
    found = _Found()
    for entry in entries:
        found.add(entry)
    return found.generations()


def newest_generations(identity: Identity, listed: Callable[[], Iterable[Entry]]) -> Generations:
    """What a listing of one identity's folder says of its newest generations, in bounded memory.

    `listed` begins a listing; a second one is made where there are more. The greatest number is always among them.
    """
    found = _Found()
    for entry in listed():
        found.add(entry)
        found.keep_newest()
    if found.is_cut:
        for entry in listed():
            found.add_removed_of_kept(entry)
    if found.passed_over:
        _log.warning(
            "generations_passed_over",
            identity=str(identity),
            kept=len(found.committed),
            passed_over=found.passed_over,
            remedy=remedy(identity),
        )
    return found.generations()


def remedy(identity: Identity) -> str:
    """Against more generations of a workload than are read."""
    return f"remove what is nobody's below {layout.identity_folder(identity)}/, and {_WHO}"


class _Found:
    def __init__(self) -> None:
        self.committed: dict[SnapshotRef, Entry] = {}
        self._removed: set[SnapshotRef] = set()
        self.passed_over = 0
        """Manifests."""
        self.is_cut = False
        """Whether anything was left out, also numbers alone that are used up."""

    def add(self, entry: Entry) -> None:
        file = layout.parse_generation_key(entry.key)
        if file is None or file.kind == "claim":
            return
        ref = file.ref
        if file.kind == "removed":
            self._removed.add(ref)
        elif ref not in self.committed or _precedence(entry) < _precedence(self.committed[ref]):
            self.committed[ref] = entry

    def add_removed_of_kept(self, entry: Entry) -> None:
        file = layout.parse_generation_key(entry.key)
        if file is not None and file.kind == "removed" and file.ref in self.committed:
            self._removed.add(file.ref)

    def keep_newest(self) -> None:
        """Pass over what is too much, now and then."""
        if len(self.committed) > 2 * MOST_GENERATIONS:
            self.passed_over += len(self.committed) - MOST_GENERATIONS
            self.committed = {ref: self.committed[ref] for ref in _newest(self.committed)}
            self.is_cut = True
        if len(self._removed) > 2 * MOST_GENERATIONS:
            self._removed = set(_newest(self._removed))
            self.is_cut = True

    def generations(self) -> Generations:
        committed = {ref: entry for ref, entry in self.committed.items() if ref not in self._removed}
        return Generations(committed, self._removed)


def _newest(refs: Iterable[SnapshotRef]) -> list[SnapshotRef]:
    return sorted(refs, reverse=True)[:MOST_GENERATIONS]


def _precedence(entry: Entry) -> tuple[bool, float, str]:
    """Manifests made by conditional create carry no writer, and come before all others."""
    file = layout.parse_generation_key(entry.key)
    return (file is not None and file.writer is not None, entry.modified, entry.key)
