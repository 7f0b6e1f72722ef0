"""Preparation of a restore by CRIU: mounts, timers, locks and files of the processes.

Functions that decode images block, and are meant for threads.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from msgspec.structs import replace

from cedana_sched.local.runs.name_verification import require_names_of_roots
from cedana_sched.model.errors import RestoreError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.current_terminals import reopen_by_name
from cedana_sched.snapshot.external_mounts import Externals, host_externals
from cedana_sched.snapshot.grown_file_truncation import remove_sizes
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.job_outputs import saved_outputs
from cedana_sched.snapshot.posix_lock_removal import remove_posix_locks
from cedana_sched.snapshot.pty_output_reversal import undo_output_processing
from cedana_sched.snapshot.ran_ahead_files import has_to_be_unchanged, read_record
from cedana_sched.snapshot.recorded_size_removal import remove_recorded_sizes
from cedana_sched.snapshot.restore import RestoreRequest
from cedana_sched.snapshot.terminal_file_links import separate_terminal_files
from cedana_sched.snapshot.timerfd_rearming import rearm_expired_timers


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


def prepare_images(toolchain: Toolchain, request: RestoreRequest) -> RestoreRequest:
    """Make images consistent; return the request with what the processes must be given before they run.

    Raises:
        RestoreError: a user may have redirected a name in them, or the record of the job's files is unreadable.
        SnapshotError: an image cannot be decoded.
        OSError: an image cannot be changed.
    """
    images = request.images
    require_names_of_roots(toolchain, images)
    rearm_expired_timers(toolchain, images)
    undo_output_processing(toolchain, images)
    decoded = Images(toolchain, folder_reader(images))
    reopen_by_name(decoded, images)
    separate_terminal_files(decoded, images)
    record = read_record(images)
    outputs = (*request.outputs, *saved_outputs(record))
    if has_to_be_unchanged(request.on_change):
        remove_recorded_sizes(decoded, images, record)  # if CRIU refused a file, `onRestoreFailure` would decide
    sizes = remove_sizes(toolchain, images, outputs)
    return replace(request, outputs=outputs, sizes=sizes, locks=remove_posix_locks(toolchain, images))


def preload_image_decoder(toolchain: Toolchain) -> None:
    """Load the image decoder, so that the first restore does not wait for the load."""
    Images(toolchain, folder_reader(Path("/nonexistent")))
