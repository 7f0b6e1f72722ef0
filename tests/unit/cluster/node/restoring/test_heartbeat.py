"""A restore container that waits sees that an agent is on its node, whatever its kubelet publishes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.bundles import Bundles, Incarnation
from cedana_sched.cluster.node.restoring.file_waits import wait_for_result
from cedana_sched.cluster.node.restoring.heartbeat import send_heartbeats
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_CONTAINER
from tests.unit.cluster.node.bundle_tree import Host, state


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
    showing = asyncio.create_task(send_heartbeats(host.places, every_seconds=0.01))
    alive = waits / "alive"
    await wait_for_result(waits, lambda: alive if alive.exists() else None)
    alive.unlink()
    await wait_for_result(waits, lambda: alive if alive.exists() else None)
    showing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await showing
    assert not list(over.iterdir())
    assert not list(other.iterdir())


async def test_defect_that_a_pod_shows_ends_no_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    waits = host.folder(host.places.pods / "waits/volumes/kubernetes.io~empty-dir/cedana-restore")
    host.container("s1", kind="sandbox")
    host.container("c1", "waits", RESTORE_CONTAINER)
    looks, defects = Bundles.running_incarnations, [ValueError("odd")]

    def fails(self: Bundles) -> dict[str, Incarnation]:
        if defects:
            raise defects.pop()
        return looks(self)

    monkeypatch.setattr(Bundles, "running_incarnations", fails)
    showing = asyncio.create_task(send_heartbeats(host.places, every_seconds=0.01))
    async with asyncio.timeout(60):
        await wait_for_result(waits, lambda: True if (waits / "alive").exists() else None)
    showing.cancel()
    await asyncio.gather(showing, return_exceptions=True)


@pytest.mark.parametrize("name", ["alive", "progress", "waiting"])
def test_nothing_but_a_regular_file_of_a_pod_is_ever_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A pod may make devices in its volumes; to open one may be enough. A pipe tells that it was opened."""
    host = Host(tmp_path)
    volume = host.folder(host.places.pods / "p1/volumes/kubernetes.io~empty-dir/cedana-restore")
    container = RestoreContainerMessages("p1", host.places)
    says: dict[str, Callable[[], object]] = {
        "alive": container.write_heartbeat,
        "progress": lambda: container.print_line("10 %"),
        "waiting": container.has_taken_decision,
    }
    os.mkfifo(volume / name)
    opened: list[int] = []
    plainly = os.open

    def watched(path: str | Path, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        number = plainly(path, flags, mode, dir_fd=dir_fd)
        if not flags & os.O_PATH:
            opened.append(number)
        return number

    reader = plainly(volume / name, os.O_RDWR | os.O_NONBLOCK)  # so that whoever writes could
    monkeypatch.setattr(os, "open", watched)
    if name == "waiting":
        assert says[name]() is False
    else:
        with pytest.raises(RestoreError):
            says[name]()
    assert opened == []
    os.close(reader)


def test_what_is_written_again_is_written_to_the_same_file(tmp_path: Path) -> None:
    host = Host(tmp_path)
    volume = host.folder(host.places.pods / "p1/volumes/kubernetes.io~empty-dir/cedana-restore")
    container = RestoreContainerMessages("p1", host.places)
    for line in ("10 %", "20 %"):
        container.write_heartbeat()
        container.print_line(line)
    assert (volume / "alive").read_text() == "\n"
    assert (volume / "progress").read_text() == "10 %\n20 %\n"
