"""A restore container that waits sees that an agent is on its node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.files import until
from cedana_sched.cluster.node.returning.life import show_life
from cedana_sched.kube.objects import ContainerStatus, Metadata, Pod, PodStatus
from cedana_sched.model.objects.names import RESTORE_CONTAINER


def _pod(uid: str, state: str, name: str = RESTORE_CONTAINER) -> Pod:
    return Pod(Metadata(uid=uid), status=PodStatus(init_container_statuses=(ContainerStatus(name, {state: {}}),)))


def _volume(folder: Path, uid: str) -> Path:
    volume = folder / uid / "volumes/kubernetes.io~empty-dir/cedana-restore"
    volume.mkdir(parents=True)
    return volume


async def test_who_waits_is_shown_and_no_other(tmp_path: Path) -> None:
    over, other, waits = (_volume(tmp_path, uid) for uid in ("over", "other", "waits"))
    pods = [
        _pod("over", "terminated"),
        _pod("gone", "running"),
        _pod("other", "running", "prepare"),
        _pod("waits", "running"),
    ]
    showing = asyncio.create_task(show_life(pods, Places(pods=tmp_path), every_seconds=0.01))
    alive = waits / "alive"
    await until(waits, lambda: alive if alive.exists() else None)
    alive.unlink()
    await until(waits, lambda: alive if alive.exists() else None)
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    assert not list(over.iterdir())
    assert not list(other.iterdir())
