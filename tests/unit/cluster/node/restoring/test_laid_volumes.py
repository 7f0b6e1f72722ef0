"""What the agent fills for a pod that comes back: the pod's own, and by one process at a time."""

from __future__ import annotations

import asyncio
import os
import tarfile
from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.ephemeral_volumes import SHARED_MEMORY
from cedana_sched.cluster.node.restoring.file_waits import wait_for_path
from cedana_sched.cluster.node.restoring.restore_preparation import fill_volume
from cedana_sched.model.errors import RestoreError
from tests.processes import naming
from tests.unit.cluster.node.bundle_tree import MOUNTS, Host

FILES = 20_000


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize("source", ["/dev/shm", "/srv/of-the-host"])
async def test_shared_memory_of_the_machine_is_never_filled(host: Host, source: str, tmp_path: Path) -> None:
    """A pod with the host's IPC namespace, or with a folder of the host mounted there, may come after one without."""
    host.container("a", mounts=[*MOUNTS[:-1], MOUNTS[-1] | {"source": source}])
    kept = host.folder(Path(source)) / "of-somebody-else"
    kept.touch()
    with pytest.raises(RestoreError, match="no shared memory of its own"):
        await fill_volume(tmp_path / "shm.tar", "p1", SHARED_MEMORY, host.places)
    assert kept.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="a volume is laid in a root of its own")
async def test_nobody_writes_into_a_volume_once_its_laying_was_cancelled(host: Host, tmp_path: Path) -> None:
    volume = host.folder(host.places.pods / "p1/volumes/kubernetes.io~empty-dir/data")
    archive = tmp_path / "data.tar"
    with tarfile.open(archive, "w") as written:
        for number in range(FILES):
            written.addfile(tarfile.TarInfo(f"file-{number}"))
    laying = asyncio.create_task(fill_volume(archive, "p1", "data", host.places))
    await asyncio.wait_for(wait_for_path(volume / "file-0", Path("/proc/self/mounts")), 60)
    laying.cancel()
    await asyncio.gather(laying, return_exceptions=True)
    assert laying.cancelled()
    assert naming(archive) == [], "nobody writes any more"
    assert _count(volume) < FILES, "it was in the middle"
    await fill_volume(archive, "p1", "data", host.places)
    assert _count(volume) == FILES


def _count(volume: Path) -> int:
    return len(list(volume.iterdir()))
