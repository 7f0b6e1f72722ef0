"""Every adapter dates an eviction by the API server's clock, by which the core reckons its deadline as well."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from cedana_sched.adapter.conformance import Stage
from cedana_sched.adapter.conformance.coordinator import coordinating
from cedana_sched.kube.server_time import SERVER_TIME
from tests.unit.adapters.armada.armada_stage import ArmadaStage
from tests.unit.adapters.armada.fake_armada import FakeArmada
from tests.unit.adapters.kueue.kueue_stage import KueueStage
from tests.unit.adapters.volcano.volcano_stage import VolcanoStage

APART_SECONDS = 600.0


@asynccontextmanager
async def kueue() -> AsyncIterator[Stage]:
    yield KueueStage()


@asynccontextmanager
async def volcano() -> AsyncIterator[Stage]:
    yield VolcanoStage()


@asynccontextmanager
async def armada() -> AsyncIterator[Stage]:
    fake = FakeArmada(SERVER_TIME.seconds)
    async with fake.serving() as address:
        yield ArmadaStage(fake, address)


@pytest.mark.parametrize("stage_of", [kueue, volcano, armada])
@pytest.mark.parametrize("apart", [APART_SECONDS, -APART_SECONDS])
async def test_eviction_is_dated_by_the_api_server(
    monkeypatch: pytest.MonkeyPatch, stage_of: Callable[[], AbstractAsyncContextManager[Stage]], apart: float
) -> None:
    monkeypatch.setattr(SERVER_TIME, "_least", apart)
    monkeypatch.setattr(SERVER_TIME, "_most", apart)
    async with stage_of() as stage, coordinating(stage) as coordinator:
        (victim,) = await stage.start()
        await stage.preempt(victim)
        signal = await coordinator.signal_of(victim)
    assert signal.observed_at == pytest.approx(time.time() + apart, abs=60)
