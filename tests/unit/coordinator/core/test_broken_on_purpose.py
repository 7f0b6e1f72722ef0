"""Every invariant, broken on purpose: a check that cannot fail proves nothing.

Each case changes one rule of the core, or one habit of an agent, into a plausible mistake, and plays random
schedules until the check of that very invariant catches it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from cedana_sched.coordinator.core import restore_obstacles, restore_steps, snapshot_lookups
from cedana_sched.coordinator.core.checkpoint_steps import CheckpointSteps
from cedana_sched.coordinator.core.checkpoints import Checkpoints
from cedana_sched.coordinator.core.holds import Holds
from cedana_sched.coordinator.core.restore_steps import RestoreSteps
from cedana_sched.coordinator.core.restores import Restores
from cedana_sched.coordinator.core.snapshot_lookups import SnapshotLookups
from cedana_sched.coordinator.core.transitions import Cause
from cedana_sched.coordinator.core.turn import Turn
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.orders import Abort, FindSnapshot, Kill, Killed, SnapshotFound, Staged
from cedana_sched.model.records import CheckpointStep, HoldStep
from tests.unit.coordinator.core.simulated_node import BrokenInvariantError, SimulatedAgent, World
from tests.unit.coordinator.core.simulation import Simulation

Patch = Callable[[pytest.MonkeyPatch], None]
MOST_SCHEDULES = 4_000


def claims_twice(patch: pytest.MonkeyPatch) -> None:
    """A core that does not look whether somebody else runs from the snapshot."""
    patch.setattr(SnapshotLookups, "blocked_by", lambda self, restore: None)
    patch.setattr(restore_obstacles, "claimed_by_other", lambda registry, restore, snapshot: False)


def restores_twice(patch: pytest.MonkeyPatch) -> None:
    """A core that frees a claim as soon as the workload runs."""
    claims_twice(patch)
    patch.setattr("cedana_sched.coordinator.core.invariants.claimed_snapshot", lambda restore: None)


def saves_two_as_one(patch: pytest.MonkeyPatch) -> None:
    """A core that does not look whether somebody else runs under the identity."""
    patch.setattr(restore_obstacles, "rival_reason", lambda registry, checkpoint: None)


def starts_cold_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A core that asks the store at once, whoever still runs or is being saved."""
    patch.setattr(restore_obstacles, "blocked_by", lambda registry, restore, wanted: None)


def starts_cold_silently(patch: pytest.MonkeyPatch) -> None:
    """A core that drops the reason of a cold start."""
    original = RestoreSteps.take_transition

    def move(self: RestoreSteps, restore: Any, cause: Cause, **changes: Any) -> Any:
        if cause is Cause.START_COLD:
            changes["failure"] = None
        return original(self, restore, cause, **changes)

    patch.setattr(RestoreSteps, "take_transition", move)


def saves_periodically_beside_evictions(patch: pytest.MonkeyPatch) -> None:
    """A core that lets periodic checkpoints go on while an eviction waits for its own."""
    patch.setattr(Checkpoints, "_cancel_if_periodic", lambda self, uids: None)


def restores_what_was_called_off(patch: pytest.MonkeyPatch) -> None:
    """An agent whose upload finishes behind the abort's back, and a core that does not exclude it."""
    patch.setattr(
        snapshot_lookups,
        "lookup_order_of",
        lambda registry, restore, now: FindSnapshot(restore.uid, restore.identity, restore.requested_snapshot),
    )
    original = SimulatedAgent.abort

    def abort(self: SimulatedAgent, order: Any, now: float) -> Any:
        upload = self.dumps.get(order.checkpoint_uid)
        answer = original(self, order, now)
        if upload is not None:
            self.world.commit(upload[1], self.world.processes[order.workload.uid], upload[2])
        return answer

    patch.setattr(SimulatedAgent, "abort", abort)


def restores_what_is_not_there(patch: pytest.MonkeyPatch) -> None:
    """An agent that stages whatever it is told, verified or not."""
    original = World.commit

    def commit(self: World, *arguments: Any) -> Any:
        snapshot = original(self, *arguments)
        snapshot.discarded = self.rng.random() < 0.5  # the upload was cut off, the answer says otherwise
        return snapshot

    patch.setattr(World, "commit", commit)
    patch.setattr(SimulatedAgent, "stage", lambda self, order, now: Staged(order.restore_uid))
    patch.setattr(
        SimulatedAgent,
        "look_up",
        lambda self, order, now: SnapshotFound(order.restore_uid, _last_ref(self.world, order.identity)),
    )
    patch.setattr(SimulatedAgent, "kill", _trusting_kill)


def forgets_the_hold(patch: pytest.MonkeyPatch) -> None:
    """A core that never looks at the clock for a hold."""
    patch.setattr(Holds, "set_next_timer", lambda self, hold: None)


def releases_early(patch: pytest.MonkeyPatch) -> None:
    """A core that releases each hold as soon as one victim is settled."""

    def reconcile(self: Holds, hold: Any) -> None:
        checkpoints = [self._registry.checkpoints[uid] for uid in hold.checkpoints]
        if hold.step is HoldStep.HOLDING and any(c.step is CheckpointStep.DUMPING for c in checkpoints):
            self._release(hold, Cause.SETTLED)

    patch.setattr(Holds, "reconcile", reconcile)


def runs_on_while_frozen(patch: pytest.MonkeyPatch) -> None:
    """A node whose freezer does not freeze: the process executes between the dump and the kill."""
    original = World.run

    def run(self: World) -> None:
        frozen = {uid: p.frozen_by for uid, p in self.processes.items() if p.alive and p.frozen_by}
        for uid in frozen:
            self.processes[uid].frozen_by = None
        original(self)
        for uid, checkpoint_uid in frozen.items():
            self.processes[uid].frozen_by = checkpoint_uid

    patch.setattr(World, "run", run)


def kills_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A core that takes `Frozen` for the end of the dump."""
    original = CheckpointSteps.take_transition

    def move(self: CheckpointSteps, checkpoint: Any, cause: Cause, **changes: Any) -> Any:
        moved = original(self, checkpoint, cause, **changes)
        if cause is Cause.ALL_FROZEN and moved is not None:
            original(self, moved, Cause.COMMITTED)
        return moved

    patch.setattr(CheckpointSteps, "take_transition", move)


def kills_a_part_of_the_gang(patch: pytest.MonkeyPatch) -> None:
    """A core without the second barrier."""

    def barrier(self: Checkpoints, checkpoint: Any) -> None:
        self._steps.take_transition(checkpoint, Cause.KILL_ALL if checkpoint.after_commit == "Stop" else Cause.THAW_ALL)

    patch.setattr(Checkpoints, "_pass_commit_barrier", barrier)


def freezes_twice(patch: pytest.MonkeyPatch) -> None:
    """A core that begins a checkpoint while another one of the same workload is under way."""
    patch.setattr("cedana_sched.coordinator.core.checkpoint_starts.is_active", lambda checkpoint: False)


def leaves_it_frozen(patch: pytest.MonkeyPatch) -> None:
    """An agent that says `Aborted`, and has not thawed the workload."""
    patch.setattr(SimulatedAgent, "_thaw", lambda self, workload_uid, uid: None)


def crosses_borders(patch: pytest.MonkeyPatch) -> None:
    """A core that gives any workload the snapshot that it asks for."""
    patch.setattr(restore_obstacles, "request_refusal", lambda restore: None)


def forgets_checkpoint_deadlines(patch: pytest.MonkeyPatch) -> None:
    """A core whose checkpoints have no alarm."""
    patch.setattr(CheckpointSteps, "set_next_timer", lambda self, checkpoint, **_: None)


def forgets_restore_deadlines(patch: pytest.MonkeyPatch) -> None:
    """A core whose restores have no alarm."""
    patch.setattr(RestoreSteps, "set_next_timer", lambda self, restore: None)


def never_orders_an_abort(patch: pytest.MonkeyPatch) -> None:
    """A core that takes its decision for the deed."""
    original = Turn.send_order

    def order(self: Turn, uid: str, node: str, order: Any) -> None:
        if not isinstance(order, Abort):
            original(self, uid, node, order)

    patch.setattr(Turn, "send_order", order)


def ends_the_doomed_while_it_holds(patch: pytest.MonkeyPatch) -> None:
    """A core whose patience counts from the order, whatever hold stands."""

    def ends_at(self: CheckpointSteps, checkpoint: Any) -> float | None:
        return checkpoint.finished_at + self._turn.timing.patience if checkpoint.kill_pending else None

    patch.setattr(CheckpointSteps, "final_kill_at", ends_at)


def never_ends_the_doomed(patch: pytest.MonkeyPatch) -> None:
    """A core that leaves it to the scheduler to delete what it was given."""
    patch.setattr(CheckpointSteps, "final_kill_at", lambda self, checkpoint: None)


def frees_whom_it_gave_up(patch: pytest.MonkeyPatch) -> None:
    """A core that takes the answer to `FailWorkload` for the end of what its node was continuing."""
    original = RestoreSteps.take_transition

    def move(self: RestoreSteps, restore: Any, cause: Cause, **changes: Any) -> Any:
        if cause is Cause.WORKLOAD_FAILED:
            changes["finished_at"] = self._turn.now
        return original(self, restore, cause, **changes)

    patch.setattr(RestoreSteps, "take_transition", move)


def evicts_whom_it_gave_up(patch: pytest.MonkeyPatch) -> None:
    """A core that takes a return that failed, or whose node is silent, for a workload that has ended."""
    patch.setattr("cedana_sched.coordinator.core.checkpoint_starts.is_unconfirmed", lambda restore: False)


def waits_for_an_earlier_beginning(patch: pytest.MonkeyPatch) -> None:
    """A core that takes the report of another beginning for a repeated one."""
    original = Restores.start

    def start(self: Restores, adapter: str, report: Any) -> None:
        original(self, adapter, msgspec.structs.replace(report, incarnation=0))

    patch.setattr(Restores, "start", start)


def counts_beginnings_itself(patch: pytest.MonkeyPatch) -> None:
    """A core that takes every repeated report for another beginning."""
    original = Restores.start

    def start(self: Restores, adapter: str, report: Any) -> None:
        earlier = self._registry.latest_restore_of_workload(report.workload.uid)
        known = earlier.incarnation + 1 if earlier is not None else 0
        original(self, adapter, msgspec.structs.replace(report, incarnation=known))

    patch.setattr(Restores, "start", start)


def starts_beside_its_predecessor(patch: pytest.MonkeyPatch) -> None:
    """A core that takes a workload that was deleted for one that has ended."""
    original = Restores.start

    def start(self: Restores, adapter: str, report: Any) -> None:
        original(self, adapter, msgspec.structs.replace(report, predecessor=None))

    patch.setattr(Restores, "start", start)


def forgets_the_loss_of_a_node(patch: pytest.MonkeyPatch) -> None:
    """A core in which a restore inherits no loss."""
    patch.setattr(restore_steps, "inherited_loss", lambda registry, restore, saved: restore.loss)


CASES = [
    pytest.param("12", forgets_the_loss_of_a_node, id="12 a loss is not inherited"),
    pytest.param("11", starts_beside_its_predecessor, id="11 a workload starts beside one that is cut off"),
    pytest.param("1", claims_twice, id="1 a snapshot is claimed twice"),
    pytest.param("1", restores_twice, id="1 two processes run from one snapshot"),
    pytest.param("1", frees_whom_it_gave_up, id="1 who was given up while it came back loses its claim"),
    pytest.param("4", evicts_whom_it_gave_up, id="4 who was given up, and runs, is evicted unsaved"),
    pytest.param("2", starts_cold_in_flight, id="2 a cold start while a snapshot may still be committed"),
    pytest.param("2", starts_cold_silently, id="2 a cold start without a word"),
    pytest.param("3", restores_what_was_called_off, id="3 a snapshot that was called off is restored"),
    pytest.param("3", restores_what_is_not_there, id="3 an uncommitted snapshot is restored"),
    pytest.param("4", forgets_the_hold, id="4 a hold outlives its deadline"),
    pytest.param("4", releases_early, id="4 a hold is released before its victims are safe"),
    pytest.param("4", ends_the_doomed_while_it_holds, id="4 a committed pod is ended while its hold stands"),
    pytest.param("9", never_ends_the_doomed, id="9 a committed pod that nobody deletes stays for ever"),
    pytest.param("5", runs_on_while_frozen, id="5 a frozen process executes"),
    pytest.param("5", kills_before_the_commit, id="5 a process is killed before the commit"),
    pytest.param("5", kills_a_part_of_the_gang, id="5 a part of a gang is killed"),
    pytest.param("5", freezes_twice, id="5 a process is frozen by two checkpoints"),
    pytest.param("4", saves_periodically_beside_evictions, id="4 an eviction waits beside a periodic checkpoint"),
    pytest.param("6", leaves_it_frozen, id="6 a called-off checkpoint leaves the process frozen"),
    pytest.param("7", crosses_borders, id="7 a snapshot crosses its namespace"),
    pytest.param("8", crosses_borders, id="8 a replica continues as another"),
    pytest.param("8", saves_two_as_one, id="8 two workloads are saved under one identity"),
    pytest.param("9", forgets_checkpoint_deadlines, id="9 a checkpoint never ends"),
    pytest.param("9", forgets_restore_deadlines, id="9 a restore never ends"),
    pytest.param("6", never_orders_an_abort, id="6 an abort is decided and never ordered"),
    pytest.param("9", waits_for_an_earlier_beginning, id="9 a pod that begins again waits for ever"),
    pytest.param("1", counts_beginnings_itself, id="1 two returns are for one beginning"),
]


@pytest.mark.parametrize(("number", "mistake"), CASES)
def test_check_catches(number: str, mistake: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    other: set[str] = set()
    for seed in range(MOST_SCHEDULES):
        try:
            Simulation(seed).run()
        except BrokenInvariantError as broken:
            if any(part.startswith(f"{number}:") for part in str(broken).split("; ")):
                return
            other.add(str(broken)[:1])
        except (CedanaSchedError, KeyError, RuntimeError) as error:
            other.add(type(error).__name__)
    pytest.fail(f"no schedule breaks invariant {number}; caught instead: {sorted(other)}")


def _last_ref(world: World, identity: Any) -> Any:
    snapshots = world.snapshots.get(identity)
    return snapshots[-1].ref if snapshots else None


def _trusting_kill(self: SimulatedAgent, order: msgspec.Struct, now: float) -> Any:
    """Kill without a look at the store; everything else as it should be."""
    assert isinstance(order, Kill)
    process = self.world.processes.get(order.workload.uid)
    if process is not None and process.alive:
        self.world.die(process, "killed")
    return Killed(order.checkpoint_uid)
