"""The embedded adapter fulfils the contract over a scheduling loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cedana_sched.adapter.contract import Adapter, HoldsEvictions, Preempted, Report, Starting
from cedana_sched.adapter.registry import load
from cedana_sched.local.adapter import EmbeddedAdapter
from cedana_sched.local.jobs.job import JobPhase
from cedana_sched.model.preemption import Release, Verdict
from tests.unit.local.jobs.loop_bench import Bench


async def read(reports: AsyncIterator[Report], count: int) -> list[Report]:
    async with asyncio.timeout(60):
        return [await anext(reports) for _ in range(count)]


def test_the_registry_finds_it_by_name() -> None:
    assert load("embedded") is EmbeddedAdapter


def test_it_fulfils_the_contract_and_can_hold() -> None:
    adapter = EmbeddedAdapter(Bench().loop)

    assert isinstance(adapter, Adapter)
    assert isinstance(adapter, HoldsEvictions)


async def test_it_yields_what_is_pending_and_then_what_happens_without_a_gap() -> None:
    bench = Bench()
    await bench.submit("first")
    reports = EmbeddedAdapter(bench.loop).reports()

    (pending,) = await read(reports, 1)
    await bench.submit("second")
    (happened,) = await read(reports, 1)

    assert isinstance(pending, Starting)
    assert isinstance(happened, Starting)
    assert (pending.identity.id, happened.identity.id) == ("first", "second")


async def test_a_reader_that_breaks_off_and_comes_back_misses_nothing() -> None:
    bench = Bench()
    adapter = EmbeddedAdapter(bench.loop)
    reports = adapter.reports()
    await bench.running("sim", cpus="4")
    await read(reports, 0)
    await reports.aclose()  # type: ignore[attr-defined]  # a generator, as the coordinator's shell uses it
    await bench.submit("train", "ml", cpus="2")

    (again,) = await read(adapter.reports(), 1)

    assert isinstance(again, Preempted)
    assert again.signal == bench.signals[0]


async def test_a_reader_that_is_gone_is_forgotten() -> None:
    bench = Bench()
    reports = EmbeddedAdapter(bench.loop).reports()
    await bench.submit("first")
    await read(reports, 1)
    assert len(bench.loop._sinks) == 2

    await reports.aclose()  # type: ignore[attr-defined]

    assert len(bench.loop._sinks) == 1


async def test_a_hold_lasts_until_the_release_and_has_no_limit_of_its_own() -> None:
    bench = Bench()
    adapter = EmbeddedAdapter(bench.loop)
    await bench.running("sim", cpus="4")
    await bench.submit("train", "ml", cpus="2")
    (signal,) = bench.signals

    assert await adapter.hold(signal) is None
    assert await adapter.hold(signal) is None
    assert bench.terminated == []
    release = Release(signal.uid, {signal.victims[0].workload.uid: Verdict.COMMITTED})
    await adapter.release(release)
    await adapter.release(release)

    assert bench.phase("train") is JobPhase.STARTING
