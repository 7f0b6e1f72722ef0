"""The record of the files that a job's frozen processes hold, which its snapshot does not contain.

All of the host's files count, except those below mounts that are the job's own: their files are in the snapshot, or the
kernel makes their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import RunningContainer
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, encode, volume_files_of
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.external_mounts import mount_points

log = structlog.get_logger(__name__)

HOST = ("/",)
OWN_MOUNTS = frozenset({"/proc", "/sys", "/dev/pts", "/dev/shm", "/dev/mqueue"})  # noqa: S108
"""Mounts that a job has of its own, if it has them."""
_MOST_SECONDS = 10.0
"""A file system whose server is gone never answers."""


class HeldFilesRecorder:
    """Makes the notes of one engine's jobs, which are stored beside their images."""

    def __init__(self) -> None:
        self._threads: dict[str, StoreThreads] = {}

    async def make_note(self, run: str, tree: RunningContainer, externals: Collection[str]) -> dict[str, str]:
        """Return the note of a frozen job; none if the files cannot be recorded.

        Args:
            run: the job's run.
            tree: its processes.
            externals: mount points of the host's mounts in the job.
        """
        threads = self._threads.setdefault(run, StoreThreads(1, name="held files"))
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                return await threads.run(_make_note, tree.root_pid, tree.freezer, externals)
        except TimeoutError:
            why = f"a file system does not answer within {_MOST_SECONDS:g} s"
        except (OSError, ValueError) as error:
            why = str(error)
        log.warning("files of the job not recorded", run=run, error=why)
        return {}

    def forget_run(self, run: str) -> None:
        """Drop the state of a run that has ended."""
        self._threads.pop(run, None)


def _make_note(root_pid: int, group: Path, externals: Collection[str]) -> dict[str, str]:
    saved = sorted(OWN_MOUNTS.intersection(mount_points(Path(f"/proc/{root_pid}/mountinfo"))).difference(externals))
    return {VOLUME_FILES: encode(volume_files_of(freezer.pids_in_cgroup(group), HOST, saved=saved))}
