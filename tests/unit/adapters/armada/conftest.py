"""A world for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched_armada import adapter
from tests.unit.adapters.armada.armada_builders import World


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made = World()

    async def let_go(_: Api, pod: Pod) -> None:
        made.let_go.append(pod.metadata.uid)

    monkeypatch.setattr(adapter, "mark_not_preempted", let_go)
    async with made.armada.serving() as made.address:
        yield made
