"""What ends because we say so ends only while containerd sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from cedana_sched.cluster.node.containers.daemon_answers import until_listening
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.pods import ReturningPods


async def test_it_is_waited_for(tmp_path: Path) -> None:
    socket = tmp_path / "containerd.sock"
    first = await asyncio.start_unix_server(lambda *_: None, socket)
    first.close()
    assert socket.exists(), "what a daemon that has ended leaves"
    waiting = asyncio.create_task(until_listening(socket))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done
    async with await asyncio.start_unix_server(lambda _, writer: writer.close(), socket):
        await asyncio.wait_for(waiting, 10)


async def test_but_not_for_ever(tmp_path: Path) -> None:
    await asyncio.wait_for(until_listening(tmp_path / "nobody.sock", longest_seconds=0.01), 10)


async def test_a_restore_container_is_told_nothing_before(tmp_path: Path) -> None:
    told: list[str] = []

    class Container:
        async def decide(self, decision: str, why: str, serve_next: Callable[[], None]) -> None:
            del serve_next
            told.append(f"{decision}: {why}")

    answers = asyncio.Event()

    async def answering() -> None:
        await answers.wait()

    nothing = cast("Any", None)
    returns = ReturningPods(Places(tmp_path, tmp_path), tmp_path, tmp_path, nothing, nothing, answering=answering)
    ending = asyncio.create_task(returns._end(cast("Any", Container()), lambda: None, "cold", "why"))
    await asyncio.sleep(0)
    assert not told
    answers.set()
    await ending
    assert told == ["cold: why"]
