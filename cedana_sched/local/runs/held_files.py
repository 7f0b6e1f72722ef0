"""The records of the files that a job's frozen processes hold, which its snapshot does not contain.

One has all that must be the same file again (`volume_file_comparison`), the other one those that may have run ahead of
the snapshot by then (`outside_files`).

All of the host's files count, except those below mounts that are the job's own: their files are in the snapshot, or the
kernel makes their names. Each mapping of each process counts, so the bounds are higher than those of a container.

Without the first record, a job of another user than root is not restored (`name_verification`), so it is not saved
either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec.structs import replace

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import Refusal, RunningContainer
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES, outside_files_of, unknown_outside_files
from cedana_sched.runtime_handler.outside_files import encode as encode_outside_files
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, encode, is_within, volume_files_of
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.external_mounts import mount_points

log = structlog.get_logger(__name__)

HOST = ("/",)
OWN_MOUNTS = frozenset({"/proc", "/sys", "/dev/pts", "/dev/shm", "/dev/mqueue"})  # noqa: S108
"""Mounts that a job has of its own, if it has them."""
_MOST_SECONDS = 10.0
"""A file system whose server is gone never answers."""
_MOST_FILES = 1 << 18
"""A process of Python with usual libraries maps 400."""
_MOST_BYTES = 64 << 20
_FEWER = "let it have fewer processes, or fewer files open and mapped; a job of root's needs no record"
_REPAIR = "repair the file system; a job of root's needs no record"


class HeldFilesRecorder:
    """Makes the notes of one engine's jobs, which are stored beside their images."""

    def __init__(self) -> None:
        self._threads: dict[str, StoreThreads] = {}

    async def add_note(self, run: str, tree: RunningContainer, externals: Collection[str]) -> RunningContainer:
        """Return a frozen job's tree with its note, or with a refusal if it needs one and none can be made.

        Args:
            run: the job's run.
            tree: its processes.
            externals: mount points of the host's mounts in the job.
        """
        threads = self._threads.setdefault(run, StoreThreads(1, name="held files"))
        try:
            async with asyncio.timeout(_MOST_SECONDS):
                saved = await threads.run(_saved_mounts, tree.root_pid, externals)
                processes = await threads.run(freezer.pids_in_cgroup, tree.freezer)
                held = await threads.run(_held_files, processes, saved)
            outside = await _record_outside_files(threads, processes, saved)
            return replace(tree, notes={VOLUME_FILES: held, OUTSIDE_FILES: outside})
        except TimeoutError:
            why, remedy = f"they were not found within {_MOST_SECONDS:g} s", f"repair the file system, or {_FEWER}"
        except OSError as error:
            why, remedy = str(error), _REPAIR
        except ValueError as error:
            why, remedy = str(error), _FEWER
        log.warning("files of the job not recorded", run=run, error=why)
        if not await asyncio.to_thread(_has_other_users, freezer.pids_in_cgroup(tree.freezer)):
            return tree
        why = f"the files that the job's processes hold cannot be recorded, so it could not be restored: {why}"
        return replace(tree, refusal=Refusal(why, remedy))

    def forget_run(self, run: str) -> None:
        """Drop the state of a run that has ended."""
        self._threads.pop(run, None)


def _saved_mounts(root_pid: int, externals: Collection[str]) -> list[str]:
    return sorted(OWN_MOUNTS.intersection(mount_points(Path(f"/proc/{root_pid}/mountinfo"))).difference(externals))


def _held_files(processes: Collection[int], saved: Collection[str]) -> str:
    return encode(volume_files_of(processes, HOST, _MOST_BYTES, saved, _MOST_FILES))


def _outside_files(processes: Collection[int], saved: Collection[str]) -> str:
    return encode_outside_files(outside_files_of(processes, lambda path: is_within(path, HOST, saved)))


async def _record_outside_files(threads: StoreThreads, processes: Collection[int], saved: Collection[str]) -> str:
    """Return the second record: without these files it says why, and a policy decides what follows at the restore."""
    error: OSError | ValueError
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            return await threads.run(_outside_files, processes, saved)
    except TimeoutError:
        error = TimeoutError(f"they were not found within {_MOST_SECONDS:g} s")
    except (OSError, ValueError) as failure:
        error = failure
    return encode_outside_files(unknown_outside_files(error))


def _has_other_users(processes: Iterable[int]) -> bool:
    """Return whether a thread has another user than root in any of its user ids."""
    for process in processes:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for thread in Path(f"/proc/{process}/task").iterdir():
                status = (thread / "status").read_bytes()
                users = next(line for line in status.splitlines() if line.startswith(b"Uid:")).split()[1:]
                if any(user != b"0" for user in users):
                    return True
    return False
