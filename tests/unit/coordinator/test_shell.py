"""The shell with fakes in memory and virtual time: restarts, deaths, failures, concurrency."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
import structlog

from cedana_sched.adapter.contract import Ended, Preempted, Starting
from cedana_sched.coordinator import Coordinator, shell
from cedana_sched.coordinator.core import PublishEvent, Timing
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.identity import Identity
from cedana_sched.model.orders import Killed
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Signal, Verdict, Victim, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, HoldStep, PreemptionHold, Restore, RestoreStep
from tests.unit.coordinator.core.simulated_node import SimulatedAgent, World
from tests.unit.coordinator.shell_fakes import (
    MemoryAdapter,
    MemoryAgents,
    MemoryJournal,
    MemoryListener,
    PowerFailureError,
)
from tests.unit.coordinator.virtual_clock import VirtualClock


class SteadyDice(Random):
    """Nothing that the simulated agent does by chance happens."""

    def random(self) -> float:
        return 0.99


class Bench:
    """One coordinator with everything around it, which survives the coordinator's restarts."""

    def __init__(self, workloads: int = 1) -> None:
        self.clock = VirtualClock()
        self.lives = 0
        self.journal = MemoryJournal()
        self.adapter = MemoryAdapter()
        self.listener = MemoryListener()
        self.world = World(SteadyDice())
        self.workloads = [WorkloadRef(f"w{n}", "bio", f"md-{n}", "n1") for n in range(workloads)]
        self.identities = {w.uid: Identity("bio", "md", n) for n, w in enumerate(self.workloads)}
        self.agents = MemoryAgents(self.world, self.clock, SimulatedAgent(self.world, self.identities))

    def coordinator(self) -> Coordinator:
        return Coordinator(
            journal=self.journal,
            adapters={"memory": self.adapter},
            agents=self.agents,
            clock=self.clock,
            listener=self.listener,
            timing=Timing(),
        )

    async def keep_running(self) -> None:
        """Start a new coordinator whenever one dies of a power failure."""
        while True:
            self.lives += 1
            try:
                await self.coordinator().run()
            except* PowerFailureError:
                await asyncio.sleep(0)

    def start_all(self) -> None:
        for workload in self.workloads:
            self.adapter.report(Starting(workload, self.identities[workload.uid]))

    def restart_as(self, uid: str, index: int = 0) -> None:
        workload = WorkloadRef(uid, "bio", f"md-{index}", "n1")
        self.identities[uid] = Identity("bio", "md", index)
        self.adapter.report(Starting(workload, self.identities[uid]))

    def preempt(self, *, policy: CheckpointPolicy | None = None) -> Signal:
        victims = tuple(
            Victim(w, self.identities[w.uid], policy or CheckpointPolicy(deadline_seconds=60)) for w in self.workloads
        )
        signal = Signal("s1", "memory", victims, "InCohortReclamation", self.clock.now())
        self.adapter.report(Preempted(signal))
        return signal

    def steps(self) -> dict[str, str]:
        return {record.uid: str(record.step) for record in self.journal.records.values()}


async def test_a_preemption_is_committed_released_and_continued() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(10)
        bench.restart_as("w9")
        await bench.clock.advance(1)

        assert [r.verdicts for r in bench.adapter.released] == [{"w0": Verdict.COMMITTED}]
        assert bench.adapter.held == ["s1"]
        restore = next(r for r in coordinator._core.records() if r.uid == "restore.w9")
        assert isinstance(restore, Restore)
        assert restore.step is RestoreStep.RUNNING
        assert not restore.cold
    assert bench.world.restarts == 1
    wanted = ["CheckpointStarted", "EvictionHeld", "CheckpointCommitted", "EvictionReleased", "Restored"]
    assert [kind for kind in bench.listener.told_kinds if kind in wanted] == wanted


@pytest.mark.parametrize("save", range(1, 13))
async def test_a_coordinator_that_dies_after_any_save_is_continued_by_the_next(save: int) -> None:
    """Whatever it had written and not yet done, its successor does; the work is saved once and continued once."""
    bench = Bench()
    bench.journal.power_fails_after = save
    engine = asyncio.create_task(bench.keep_running())
    bench.start_all()
    await bench.clock.advance(1)
    bench.preempt()
    await bench.clock.advance(40)
    bench.adapter.report(Ended("w0", "killed"))
    bench.restart_as("w9")
    await bench.clock.advance(40)
    engine.cancel()
    await asyncio.wait({engine})

    assert bench.lives == 2
    steps = bench.steps()
    assert steps["s1"] == HoldStep.RELEASED
    assert steps["restore.w9"] == RestoreStep.RUNNING
    assert {r.verdicts["w0"] for r in bench.adapter.released} == {Verdict.COMMITTED}
    assert bench.world.restarts == 1


async def test_a_release_that_fails_twice_is_done_the_third_time() -> None:
    bench = Bench()
    bench.adapter.release_failures = [RetryableError("the API server is away"), OSError("a defect of the adapter")]
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(5.05)
        assert not bench.adapter.released
        await bench.clock.advance(3)

        assert len(bench.adapter.released) == 1
        assert bench.listener.told_kinds.count("ReleaseFailed") == 2
        assert bench.steps()["s1"] == HoldStep.RELEASED


@pytest.mark.parametrize("death", [RetryableError("connection refused"), OSError("a defect"), None])
@pytest.mark.parametrize("order", ["Freeze", "Dump", "Kill", "FindSnapshot", "StartCold"])
async def test_an_agent_that_dies_over_an_order_gets_it_again(order: str, death: Exception | None) -> None:
    bench = Bench()
    bench.agents.failures[order] = [death, death]
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(8)
        bench.preempt()
        await bench.clock.advance(15)

        assert bench.agents.performed[order] == 3
        assert bench.adapter.released[0].verdicts == {"w0": Verdict.COMMITTED}


async def test_an_order_that_is_under_way_is_not_begun_again_beside_it() -> None:
    bench = Bench()
    bench.agents.dump_seconds = 1e6
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(2)
        bench.agents.agent = SimulatedAgent(bench.world, bench.identities)
        bench.agents.failures["Dump"] = []
        await bench.clock.advance(61)

        assert bench.agents.performed["Dump"] == 1
        assert bench.adapter.released[0].verdicts == {"w0": Verdict.EVICT}


async def test_orders_of_many_workloads_run_at_the_same_time() -> None:
    bench = Bench(workloads=8)
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(6)

        assert bench.agents.busiest == 8
        assert set(bench.adapter.released[0].verdicts.values()) == {Verdict.COMMITTED}


async def test_the_deadline_releases_even_if_the_agent_never_answers() -> None:
    bench = Bench()
    bench.agents.dump_seconds = 1e6
    bench.agents.failures["Abort"] = [RetryableError("no route to host")] * 10_000
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt(policy=CheckpointPolicy(deadline_seconds=20))
        await bench.clock.advance(19.5)
        assert not bench.adapter.released
        await bench.clock.advance(1)

        assert bench.adapter.released[0].verdicts == {"w0": Verdict.EVICT}
        assert "not committed within 20 s" in bench.adapter.released[0].reasons["w0"]


async def test_the_holds_own_end_is_a_deadline_too() -> None:
    bench = Bench()
    bench.agents.dump_seconds = 1e6
    bench.adapter.until = bench.clock.now() + 10
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(9.5)

        assert bench.adapter.released[0].verdicts == {"w0": Verdict.EVICT}


@pytest.mark.parametrize("end", [None, RetryableError("watch closed"), ValueError("a defect of the adapter")])
async def test_reports_that_break_are_read_again_from_what_is_pending(end: Exception | None) -> None:
    bench = Bench()
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.adapter.live.put_nowait(end)
        await bench.clock.settle()
        bench.adapter.pending.append(Preempted(_signal(bench)))
        with structlog.testing.capture_logs() as logs:
            await bench.clock.advance(30)
        assert bench.adapter.readers == 2
        assert bench.adapter.released[0].verdicts == {"w0": Verdict.COMMITTED}
        assert any(entry.get("preemption") == "s1" for entry in logs)


async def test_a_listener_that_fails_ends_no_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()

    def failing(tell: PublishEvent) -> None:
        raise ValueError(tell.kind)

    monkeypatch.setattr(bench.listener, "on_event", failing)
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(10)
        assert [r.verdicts for r in bench.adapter.released] == [{"w0": Verdict.COMMITTED}]


async def test_nothing_is_done_before_it_is_saved() -> None:
    bench = Bench()
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.journal.failures = [RetryableError("disk full")] * 3
        bench.preempt()
        await bench.clock.advance(0.1)  # less than the three shortest pauses
        assert bench.agents.performed["Freeze"] == 0

        await bench.clock.advance(6)
        assert bench.agents.performed["Freeze"] == 1


async def test_a_journal_that_fails_for_good_ends_the_coordinator() -> None:
    bench = Bench()
    coordinator = await bench.coordinator().__aenter__()
    bench.journal.failures = [OSError("read-only file system")]
    bench.start_all()
    await bench.clock.advance(1)
    with pytest.raises(ExceptionGroup) as caught:
        await coordinator.wait_ended()
    with pytest.raises(ExceptionGroup):
        await coordinator.stop()

    assert caught.group_contains(OSError, match="read-only")
    assert bench.agents.performed.total() == 0


async def test_what_waits_for_the_journal_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told anew to the next coordinator, which does not begin before the journal can be written."""
    monkeypatch.setattr(shell, "MOST_WAITING", 50)
    bench = Bench()
    coordinator = await bench.coordinator().__aenter__()
    bench.journal.failures = [RetryableError("refused")] * 1000
    bench.start_all()
    await bench.clock.advance(1)
    for _ in range(100):
        coordinator.post(Killed("c1"))
    await bench.clock.advance(600)
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(coordinator.wait_ended(), 60)
    with pytest.raises(ExceptionGroup):
        await coordinator.stop()
    assert caught.group_contains(shell.TooManyWaitingError, match="refused")

    bench.journal.failures = []
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        assert list(bench.steps()) == ["restore.w0"]


async def test_a_journal_that_cannot_be_read_is_raised_on_entry() -> None:
    bench = Bench()

    async def load() -> tuple[Checkpoint, ...]:
        raise OSError("no such file")

    bench.journal.load = load  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no such file"):
        await bench.coordinator().__aenter__()


async def test_an_event_that_contradicts_the_records_is_refused_and_logged_with_its_history() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(1)
        with structlog.testing.capture_logs() as logs:
            coordinator.post(Killed("s1.w0.1"))
            await bench.clock.settle()
        await bench.clock.advance(10)

        refused = next(entry for entry in logs if entry["event"] == "event refused")
        assert any("Freezing -> Frozen" in line for line in refused["history"])
        assert bench.adapter.released[0].verdicts == {"w0": Verdict.COMMITTED}


async def test_stopping_leaves_no_task_and_no_half_done_record() -> None:
    bench = Bench(workloads=3)
    before = asyncio.all_tasks()
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(2)
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        assert {"coordinator", "reports of memory", "changes of nodes", "alarm", "order Dump s1.w0.1"} <= names

    assert asyncio.all_tasks() == before
    assert bench.agents.busy == 0
    checkpoints = [r for r in bench.journal.records.values() if isinstance(r, Checkpoint)]
    assert {c.step for c in checkpoints} == {CheckpointStep.DUMPING}
    holds = [r for r in bench.journal.records.values() if isinstance(r, PreemptionHold)]
    assert {h.step for h in holds} == {HoldStep.HOLDING}


async def test_progress_is_shown_and_not_saved() -> None:
    bench = Bench()
    async with bench.coordinator() as coordinator:
        bench.start_all()
        await bench.clock.advance(1)
        bench.preempt()
        await bench.clock.advance(1)

        shown = next(r for r in coordinator._core.records() if isinstance(r, Checkpoint))
        saved = bench.journal.records[shown.uid]
        assert isinstance(saved, Checkpoint)
        assert (shown.transfer.read_bytes, saved.transfer.read_bytes) == (1, 0)


async def test_a_hold_of_an_adapter_that_is_not_loaded_is_logged_and_keeps_its_verdict() -> None:
    bench = Bench()
    async with bench.coordinator():
        bench.start_all()
        await bench.clock.advance(1)
        signal = _signal(bench)
        elsewhere = Signal("s2", "kueue", signal.victims, signal.reason, signal.observed_at)
        with structlog.testing.capture_logs() as logs:
            bench.adapter.report(Preempted(elsewhere))
            await bench.clock.advance(10)

        assert any(entry["event"] == "no such adapter" and entry["adapter"] == "kueue" for entry in logs)
        assert bench.steps()["s2"] == HoldStep.RELEASING


def _signal(bench: Bench) -> Signal:
    workload = bench.workloads[0]
    victim = Victim(workload, bench.identities[workload.uid], CheckpointPolicy(deadline_seconds=60))
    return Signal("s1", "memory", (victim,), "InCohortReclamation", bench.clock.now())
