"""Fills the volumes that were deleted with a pod for the pod that replaces it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from cedana_sched.cluster.node.containers.bundles import Specification
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.containers.volumes import SHARED_MEMORY, shared_memory_of
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.segments import segment
from cedana_sched.runtime.handler import sandbox_uid

_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"


async def lay_volume(archive: Path, pod_uid: str, name: str, places: Places) -> None:
    """Fill a volume, by its name in the snapshot, of a pod whose containers do not run yet.

    What the same pod wrote there before its sandbox was recreated is removed. Idempotent; after a cancellation no
    process writes any more.

    Raises:
        RestoreError: the pod has no such volume, or the archive cannot be extracted.
    """
    folder = await asyncio.to_thread(_folder, pod_uid, name, places)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cedana_sched.runtime.layer", "--volume", str(archive), str(folder),
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        _, said = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the child in which it writes
            await process.wait()
    if process.returncode:
        words = said.decode(errors="replace").strip()
        raise RestoreError(f"volume {name} cannot be filled: {words}", evidence=tuple(words.splitlines()))


def _folder(pod_uid: str, name: str, places: Places) -> Path:
    if name == SHARED_MEMORY:
        return _shared_memory(pod_uid, places)
    folder = places.pod(pod_uid) / _EMPTY_DIRS / segment("volume", name)
    if folder.is_symlink() or not folder.is_dir():
        raise RestoreError(
            f"the pod has no emptyDir volume {name} any more, which the snapshot fills",
            remedy="give the pod template the volumes that it had, or start it without the snapshot",
        )
    return folder


def _shared_memory(pod_uid: str, places: Places) -> Path:
    """Return the pod's /dev/shm on the host, which all its containers mount; the restore container runs by now."""
    for path in places.here(places.bundles).glob("*/config.json"):
        if sandbox_uid(str(path)) != pod_uid:
            continue
        specification = msgspec.json.decode(path.read_bytes(), type=Specification)
        if (source := shared_memory_of(specification)) is not None:
            return places.here(source)
    raise RestoreError("the pod has no shared memory of its own any more, which the snapshot fills")
