"""Rules for files outside a snapshot that changed after it was taken: rewound, left as they are, or a reason to refuse.

What the workload had open for writing, by its state now and at the dump:

                        plain                       append-only (all of its descriptors have O_APPEND)
    unchanged           left                        left
    grew                REWIND: truncated if it     left, with a note: others may have appended
                        was written at its end
                        otherwise: refused
    shorter             refused                     left, with a note (`copytruncate`)
    another file        refused, or left with a     left, with a note (rotated)
                        note if the size is equal
    same size           left, with a note           left, with a note

Under COLD and FAIL each such change decides. A plain file is truncated only if each writer was at its end: else it may
have been changed before its end as well, and does not become what it was. A file that the workload only read is refused
if it became shorter, or another one of another size, as CRIU does, and left otherwise: it shows others' work.

Pure. Standard library only.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from cedana_sched.runtime_handler.outside_files import OutsideFile

MOST_NAME = 200
"""Characters of a path in a text."""


class OnChange(enum.StrEnum):
    """What follows if a workload's files have changed since its snapshot: values as in a policy."""

    NONE = ""
    """The workload did not run on after the snapshot, or that is unknown: others may have changed its files, which are
    not touched."""
    REWIND = "Rewind"
    COLD = "ColdStart"
    FAIL = "Fail"


class Action(enum.Enum):
    """What is done about one file."""

    LEAVE = enum.auto()
    NOTE = enum.auto()
    """It is left, and reported."""
    REWIND = enum.auto()
    """It is truncated to its recorded size, and reported."""
    REFUSE = enum.auto()
    """The workload cannot be restored, whatever the policy for changed files is."""
    DECIDE = enum.auto()
    """The workload is not restored, and the policy for changed files decides what follows."""


class FileState(NamedTuple):
    """A file now."""

    inode: int
    size: int
    mtime_ns: int


class Judgement(NamedTuple):
    """What is done about one file, and why."""

    action: Action
    text: str = ""


def judge_file(held: OutsideFile, now: FileState, on_change: OnChange) -> Judgement:
    """Return what is done about a file, which was `held` at the dump."""
    if (now.size, now.mtime_ns) == (held.size, held.mtime_ns):
        return Judgement(Action.LEAVE)
    text = _describe_change(held, now)
    is_same = now.inode == held.inode
    if not held.is_written:
        is_refused = now.size < held.size or (now.size != held.size and not is_same)
        return Judgement(Action.REFUSE, text) if is_refused else Judgement(Action.LEAVE)
    if on_change in (OnChange.COLD, OnChange.FAIL):
        return Judgement(Action.DECIDE, text)
    if now.size == held.size:
        return Judgement(Action.NOTE, text)
    if is_same and now.size > held.size and held.is_written_at_end and on_change is OnChange.REWIND:
        return Judgement(Action.REWIND, text)
    return Judgement(Action.NOTE if held.is_appended else Action.REFUSE, text)


def _describe_change(held: OutsideFile, now: FileState) -> str:
    name = printable_path(held.path)
    sizes = f"{held.size} bytes at the snapshot, {now.size} now"
    if now.inode != held.inode:
        return f"{name} is another file of that name ({sizes})"
    if now.size > held.size:
        return f"{name} has grown ({sizes})"
    if now.size < held.size:
        return f"{name} is shorter ({sizes})"
    return f"{name} was changed in place ({held.size} bytes as before)"


def printable_path(path: str) -> str:
    """Return a path for a text: a tenant may give a file any name."""
    text = "".join(character if character.isprintable() else "?" for character in path[: MOST_NAME + 1])
    return text if len(path) <= MOST_NAME else f"{text[:MOST_NAME]}…"
