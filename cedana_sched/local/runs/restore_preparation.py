"""Preparation of a restore by CRIU: mounts, timers and files of the processes.

Functions that decode images block, and are meant for threads.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import structlog

from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.posix_lock_restore import PosixLock
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.external_mounts import Externals, host_externals
from cedana_sched.snapshot.grown_file_truncation import truncate_grown_files
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.posix_lock_removal import remove_posix_locks
from cedana_sched.snapshot.pty_output_reversal import undo_output_processing
from cedana_sched.snapshot.timerfd_rearming import rearm_expired_timers

log = structlog.get_logger(__name__)


def require_mounts(wanted: Collection[str]) -> Externals:
    """Return the host's mounts that a snapshot's processes used.

    Raises:
        RestoreError: a mount is gone; CRIU would use the empty mount point instead.
    """
    if gone := set(wanted) - set(host_externals().mounts):
        named = ", ".join(sorted(gone))
        raise RestoreError(
            f"the job had {named} mounted, and this machine has not", remedy="mount it, then restore again"
        )
    return Externals(tuple(wanted))


def prepare_images(toolchain: Toolchain, images: Path, run: str, outputs: Collection[Path]) -> tuple[PosixLock, ...]:
    """Make images and files consistent; return the locks that the processes must take themselves.

    `outputs` are the job's own output files, without other writers.

    Raises:
        SnapshotError: an image cannot be decoded, or a file is shorter than at the dump.
        OSError: a file cannot be changed.
    """
    rearm_expired_timers(toolchain, images)
    undo_output_processing(toolchain, images)
    for file in truncate_grown_files(toolchain, images, outputs):
        log.info("file rewound", run=run, path=str(file.path), was=file.was_bytes, now=file.is_bytes)
    return remove_posix_locks(toolchain, images)


def preload_image_decoder(toolchain: Toolchain) -> None:
    """Load the image decoder, so that the first restore does not wait for the load."""
    Images(toolchain, folder_reader(Path("/nonexistent")))
