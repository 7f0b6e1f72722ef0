"""The agent's messages to a pod's restore container, by files in the volume that they share.

The kubelet mounts that volume before it starts the container; a file that is written earlier is hidden below the mount.
So the agent waits for the file `waiting`, which the container writes. The volume outlives the container and its
sandbox: each run of the container writes a number of its own there, and a decision is for that run alone. The pod's own
processes may reach the volume, too, if the pod's author mounts it: the agent follows no link in it, and opens only
regular files. A process may create a device there, and some devices act as soon as they are opened, a watchdog for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable
from typing import Self, TypeVar

from asyncinotify import Mask

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.file_waits import wait_for_path
from cedana_sched.component.folder_watches import FolderChanges, shared_folder_watches
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_VOLUME
from cedana_sched.runtime_handler.wait import ALIVE, DECISION, PROGRESS, TAKEN, WAITING

T = TypeVar("T")

_VOLUMES = "volumes/kubernetes.io~empty-dir"
_READY = "plugins/kubernetes.io~empty-dir/{volume}/ready"
"""Written by the kubelet once an emptyDir is mounted (pkg/volume/emptydir)."""


class RestoreContainerMessages:
    """The restore container of one pod."""

    def __init__(self, pod_uid: str, paths: HostPaths) -> None:
        pod = paths.pod_folder(pod_uid)
        self._volume = pod / _VOLUMES / RESTORE_VOLUME
        self._mounted = pod / _READY.format(volume=RESTORE_VOLUME)

    async def wait_until_running(self) -> None:
        """Return when the container runs: all volumes of its pod are mounted by then."""
        await wait_for_path(self._mounted)
        await wait_for_path(self._volume / WAITING)

    async def wait_for_run(self, look: Callable[[], T | None]) -> T:
        """Return the first result of `look` that is not None; `look` is called again for each run of the container."""
        await self.wait_until_running()
        with shared_folder_watches().open_waiter() as changes:
            self._watch(changes)
            while (found := await asyncio.to_thread(look)) is None:
                await changes.wait()
            return found

    async def end_with_decision(self, decision: str, why: str, before: Callable[[], None] = lambda: None) -> None:
        """End the container: `restore` and `cold` let the pod start. Returns when the container has read the decision.

        Args:
            decision: one of those in `runtime_handler.wait`.
            why: human-readable reason.
            before: called, in a thread, before the decision for a run is written; its exceptions are raised.

        Raises:
            RestoreError: the volume is gone, and so is the pod.
        """
        with shared_folder_watches().open_waiter() as changes:
            self._watch(changes)
            decided_for = None
            while not self._has_run_taken_decision(number := self._run_number()):
                if number != decided_for:  # the first run, or a later one, which has no decision yet
                    await asyncio.to_thread(before)
                    self._write_decision(number, decision, why)
                    decided_for = number
                if not number:
                    return
                await changes.wait()

    def has_taken_decision(self) -> bool:
        """Return whether the latest run of the container has a decision, and ends.

        Raises:
            RestoreError: the volume is gone, or not mounted yet.
        """
        return self._has_run_taken_decision(self._run_number())

    def remove_run_files(self) -> None:
        """Remove the files of a run that ended before the pod's sandbox was recreated: that run no longer waits.

        Raises:
            RestoreError: the volume is gone, and so is the pod.
        """
        number = self._run_number()
        stale = [DECISION, *([WAITING, f"{TAKEN}.{number}"] if self._has_run_taken_decision(number) else [])]
        with self._open_volume() as volume:
            for name in stale:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=volume.number)

    def _watch(self, changes: FolderChanges) -> None:
        try:
            changes.add(self._volume, Mask.CREATE | Mask.MOVED_TO | Mask.ONLYDIR | Mask.DONT_FOLLOW)
        except OSError as error:
            raise self._volume_gone_error(error) from error

    def _run_number(self) -> str:
        """Return the number of the container's run; empty for an older version, which acknowledges no decision."""
        with self._open_volume() as volume:
            try:
                file = volume.open_regular(WAITING, os.O_RDONLY)
            except OSError:
                return ""
            with os.fdopen(file, "rb") as opened:
                text = opened.read(64).decode(errors="replace")
        return text if text.isalnum() else ""

    def _write_decision(self, number: str, decision: str, why: str) -> None:
        name = f"{DECISION}.{number}" if number else DECISION
        hidden = f".{DECISION}.{secrets.token_hex(8)}"
        with self._open_volume() as volume:
            file = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=volume.number)
            with os.fdopen(file, "w", encoding="utf-8") as written:
                written.write(f"{decision}\n{why}\n")
            os.rename(hidden, name, src_dir_fd=volume.number, dst_dir_fd=volume.number)

    def _has_run_taken_decision(self, number: str) -> bool:
        """Return whether this run of the container has ended with a decision."""
        if not number:
            return False
        with self._open_volume() as volume:
            try:
                os.stat(f"{TAKEN}.{number}", dir_fd=volume.number, follow_symlinks=False)
            except FileNotFoundError:
                return False
        return True

    def write_heartbeat(self) -> None:
        """Touch the file that shows the container that an agent is running.

        Raises:
            RestoreError: the volume is gone, or not mounted yet.
        """
        with self._open_volume() as volume:
            try:
                with os.fdopen(volume.open_regular(ALIVE, os.O_WRONLY | os.O_TRUNC | os.O_CREAT), "wb") as file:
                    file.write(b"\n")
            except OSError as error:
                raise RestoreError(f"the restore container's {ALIVE} is not what it should be: {error}") from error

    def print_line(self, line: str) -> None:
        """Have the container print a line, if it waits.

        Raises:
            RestoreError: the volume is gone, and so is the pod.
        """
        with self._open_volume() as volume:
            try:
                file = volume.open_regular(PROGRESS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                with os.fdopen(file, "w", encoding="utf-8") as written:
                    written.write(f"{line}\n")
            except OSError as error:
                raise RestoreError(f"the restore container's {PROGRESS} is not what it should be: {error}") from error

    def _open_volume(self) -> _Folder:
        try:
            return _Folder(os.open(self._volume, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW))
        except OSError as error:
            raise self._volume_gone_error(error) from error

    @staticmethod
    def _volume_gone_error(error: OSError) -> RestoreError:
        return RestoreError(f"the pod's volume {RESTORE_VOLUME} is not there: {error.strerror}")


class _Folder:
    """An open folder, closed at the end of the block."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.number)

    def open_regular(self, name: str, flags: int) -> int:
        """Open a regular file in the folder; `O_CREAT` creates a missing one. Does not block for file leases.

        Raises:
            OSError: it does not exist, or is no regular file.
        """
        try:
            seen = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self.number)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            return os.open(name, flags | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=self.number)
        try:
            if not stat.S_ISREG(os.fstat(seen).st_mode):
                raise OSError(errno.EINVAL, "no regular file", name)
            return os.open(f"/proc/self/fd/{seen}", (flags & ~os.O_CREAT) | os.O_NONBLOCK)
        finally:
            os.close(seen)
