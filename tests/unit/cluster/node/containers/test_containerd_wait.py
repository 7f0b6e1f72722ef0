"""What ends because we say so ends only while containerd sees it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from cedana_sched.cluster.node.containers import containerd_wait
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.containerd_wait import wait_for_containerd
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer


class NoPods:
    async def wait_ended(self, uid: str) -> None:
        raise AssertionError(uid)


async def test_it_is_waited_for(tmp_path: Path) -> None:
    socket = tmp_path / "containerd.sock"
    first = await asyncio.start_unix_server(lambda *_: None, socket)
    first.close()
    assert socket.exists(), "what a daemon that has ended leaves"
    waiting = asyncio.create_task(wait_for_containerd(socket))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    async with await asyncio.start_unix_server(lambda _, writer: writer.close(), socket):
        await asyncio.wait_for(waiting, 60)


_LISTENS = """
import socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
print("listens", flush=True)
time.sleep(600)
"""


async def test_one_that_has_just_started_is_waited_for_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containerd_wait, "SETTLED_SECONDS", 3600.0)
    socket = tmp_path / "containerd.sock"
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _LISTENS, socket, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert daemon.stdout is not None
        assert await daemon.stdout.readline() == b"listens\n"
        waiting = asyncio.create_task(wait_for_containerd(socket))
        done, _ = await asyncio.wait({waiting}, timeout=1.0)
        assert not done
        monkeypatch.setattr(containerd_wait, "SETTLED_SECONDS", 0.0)
        await asyncio.wait_for(waiting, 60)
    finally:
        daemon.kill()
        await daemon.wait()


async def test_but_not_for_ever(tmp_path: Path) -> None:
    await asyncio.wait_for(wait_for_containerd(tmp_path / "nobody.sock", longest_seconds=0.01), 60)


async def test_a_restore_container_is_told_nothing_before(tmp_path: Path) -> None:
    told: list[str] = []

    class Container:
        async def end_with_decision(self, decision: str, why: str, serve_next: Callable[[], None]) -> None:
            del serve_next
            told.append(f"{decision}: {why}")

    answers = asyncio.Event()

    async def answering() -> None:
        await answers.wait()

    nothing, pods = cast("Any", None), cast("Any", NoPods())
    returns = PodRestorer(HostPaths(tmp_path, tmp_path), tmp_path, tmp_path, nothing, pods, wait_containerd=answering)
    ending = asyncio.create_task(returns._end_restore_container(cast("Any", Container()), lambda: None, "cold", "why"))
    await asyncio.sleep(0)
    assert not told
    answers.set()
    await ending
    assert told == ["cold: why"]
