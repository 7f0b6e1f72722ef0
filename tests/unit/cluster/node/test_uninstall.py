"""An agent that is told to leave its node."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from cedana_sched.cluster.node.facts import has_uninstall_mark
from cedana_sched.cluster.node.uninstall import run_until_marked, uninstall
from cedana_sched.kube.builtin_kinds import Metadata, Node
from cedana_sched.model.objects import names

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Site:
    """Writes down what is done."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.done: list[str] = []

    async def wait_marked_for_uninstall(self) -> None:
        await self.told.wait()

    async def withdraw(self) -> None:
        self.done.append("labels")

    async def uninstall(self) -> None:
        self.done.append("programs")

    async def remove_uninstall_mark(self) -> None:
        self.done.append("mark")


def node(mark: str | None) -> Node:
    return Node(Metadata(name="n", annotations={} if mark is None else {names.UNINSTALL: mark}))


def test_a_mark_counts_until_its_moment() -> None:
    later, earlier = (NOW + timedelta(seconds=delta) for delta in (1, -1))
    assert has_uninstall_mark(node(later.strftime("%Y-%m-%dT%H:%M:%SZ")), NOW)
    assert not has_uninstall_mark(node(earlier.strftime("%Y-%m-%dT%H:%M:%SZ")), NOW)
    assert not has_uninstall_mark(node(None), NOW)
    for text in ("true", "9999-12-31T23:59:59-23:59", "2126-11-21T12:00:00"):
        assert not has_uninstall_mark(node(text), NOW), text


async def test_what_is_under_way_ends_before_the_node_is_cleared() -> None:
    site = Site()

    async def work(name: str) -> None:
        site.told.set()
        try:
            await asyncio.Event().wait()
        finally:
            site.done.append(f"{name} ended")

    await run_until_marked(site, work("agent"), work("keeping"))
    await uninstall(site, site)
    assert site.done == ["agent ended", "keeping ended", "labels", "programs", "mark"]


async def test_an_agent_that_fails_does_not_wait_to_be_told() -> None:
    async def work() -> None:
        raise OSError("defect")

    with pytest.raises(ExceptionGroup, match="unhandled"):
        await run_until_marked(Site(), work())
