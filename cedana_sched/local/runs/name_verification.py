"""Verification of the names that CRIU will use in a job's restore, before it does so as root.

The job's user may have put a link into a folder of theirs, to a folder of root's. A socket may be bound by a link to
where that user can create it without root. Later, each file that the processes
hold is compared with the snapshot's record (`snapshot.restore`). A snapshot without a record, which is of an earlier
version or of a job with very many files, is restored only if all its processes are root's, or no other user can replace
a file of theirs.
"""

from __future__ import annotations

import os
from pathlib import Path

from cedana_sched.local.runs.held_files import HOST, OWN_MOUNTS
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.volume_file_comparison import REMEDY, is_within, read_record
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.reopened_names import (
    can_create,
    examine_name,
    names_of_files,
    names_of_sent_files,
    names_of_sockets,
    other_users_of,
)

_WITHOUT = "start the job without the snapshot"


def require_names_of_roots(toolchain: Toolchain, folder: Path) -> None:
    """Refuse images whose names another user than root may have redirected.

    Raises:
        RestoreError: a name leads through a link of another user, or what it leads to cannot be verified.
        SnapshotError: an image cannot be decoded.
        OSError: the record or a folder cannot be read.
    """
    images = Images(toolchain, folder_reader(folder))
    try:
        held = read_record(str(folder))
    except ValueError as error:
        raise RestoreError(str(error), remedy=_WITHOUT) from error
    saved = OWN_MOUNTS if held is None else held.saved
    files, sockets = frozenset(names_of_files(images)), frozenset(names_of_sockets(images))
    users = other_users_of(images)
    names = {name for name in files | sockets if is_within(name, HOST, saved)}
    trusts = {name: examine_name(name) for name in sorted(names)}
    for name, trust in trusts.items():
        is_own = name in sockets - files and any(can_create(name, user) for user in users)
        if trust.link is not None and not is_own:
            raise RestoreError(
                f"{name}, which the job holds, is another file than when the snapshot was taken: it leads to "
                f"{os.path.realpath(name)}, by the link {trust.link}",
                remedy=f"{REMEDY}, or {_WITHOUT}",
            )
    sent = [name for name in names_of_sent_files(images) if name in trusts and trusts[name].is_replaceable]
    if sent and users:
        raise RestoreError(
            f"{sent[0]} was on its way from one process to another when the snapshot was taken, so it is unknown "
            "whether it is still the same file",
            remedy=f"let the program receive the files that it sends, or {_WITHOUT}",
        )
    replaceable = [name for name, trust in trusts.items() if trust.is_replaceable]
    if held is None and replaceable and users:
        raise RestoreError(
            "the snapshot does not record which files the job held (it is of an earlier version, or they were too "
            f"many), and a user may have replaced {replaceable[0]} since then",
            remedy=f"{_WITHOUT}; a job of root's needs no record",
        )
