"""Every adapter dates an eviction by the API server's clock, by which the core reckons its deadline as well."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

import pytest

from cedana_sched.adapter.conformance import Stage
from cedana_sched.adapter.conformance.coordinator import running_coordinator
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched_kueue.objects import ADMISSION_CHECKS
from tests.unit.adapters.armada.armada_stage import ArmadaStage
from tests.unit.adapters.armada.fake_armada import FakeArmada
from tests.unit.adapters.kueue.kueue_stage import KueueStage
from tests.unit.adapters.volcano.volcano_stage import VolcanoStage

APART_SECONDS = 600.0


@pytest.fixture(params=[APART_SECONDS, -APART_SECONDS])
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """The API server's clock less ours, in seconds."""
    seconds = float(request.param)
    monkeypatch.setattr(SERVER_TIME, "_epoch", SERVER_TIME._epoch + seconds)
    return seconds


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
async def test_eviction_is_dated_by_the_api_server(
    stage_of: Callable[[], AbstractAsyncContextManager[Stage]], apart: float
) -> None:
    async with stage_of() as stage, running_coordinator(stage) as coordinator:
        (victim,) = await stage.start()
        await stage.preempt(victim)
        signal = await coordinator.wait_for_signal(victim)
    assert signal.observed_at == pytest.approx(time.time() + apart, abs=60)


async def test_state_of_an_admission_check_is_dated_by_the_api_server(apart: float) -> None:
    stage = KueueStage()
    spec = {"controllerName": names.ADMISSION_CHECK_CONTROLLER}
    stage.api.put(ADMISSION_CHECKS, {"metadata": {"name": "cedana"}, "spec": spec})
    async with running_coordinator(stage):
        await stage.api.until(lambda: "status" in (stage.api.stored(ADMISSION_CHECKS, "cedana", None) or {}))
    (condition,) = (stage.api.stored(ADMISSION_CHECKS, "cedana", None) or {})["status"]["conditions"]
    declared = datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    assert declared == pytest.approx(time.time() + apart, abs=60)
