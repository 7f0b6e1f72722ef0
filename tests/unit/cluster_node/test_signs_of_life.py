"""A restore container that waits sees that an agent is on its node, whatever its kubelet publishes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.cluster.node.returning.files import until
from cedana_sched.cluster.node.returning.life import show_life
from cedana_sched.model.objects.names import RESTORE_CONTAINER
from tests.unit.cluster_node.bundle_tree import Host, state


async def test_who_waits_is_shown_and_no_other(tmp_path: Path) -> None:
    host = Host(tmp_path)
    over, other, waits = (
        host.folder(host.places.pods / uid / "volumes/kubernetes.io~empty-dir/cedana-restore")
        for uid in ("over", "other", "waits")
    )
    host.container("s1", kind="sandbox")
    host.container("c1", "over", RESTORE_CONTAINER, state=state(start=1))
    host.container("c2", "gone", RESTORE_CONTAINER)
    host.container("c3", "other", "prepare")
    host.container("c4", "waits", RESTORE_CONTAINER)
    showing = asyncio.create_task(show_life(host.places, every_seconds=0.01))
    alive = waits / "alive"
    await until(waits, lambda: alive if alive.exists() else None)
    alive.unlink()
    await until(waits, lambda: alive if alive.exists() else None)
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    assert not list(over.iterdir())
    assert not list(other.iterdir())
