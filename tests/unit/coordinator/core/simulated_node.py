"""A store, processes and agents as small as they can be and still lie to nobody.

A process is a counter: every instruction counts one up and has one side effect in the world. What an invariant
forbids raises `BrokenInvariantError` at the very moment at which it happens; the number is that of the design's list.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Abort,
    Aborted,
    ApplyRetention,
    CheckpointFailed,
    Committed,
    DiscardCancelled,
    Dump,
    FailWorkload,
    FindSnapshot,
    Freeze,
    Frozen,
    Kill,
    Killed,
    Order,
    Outcome,
    RemovalFailed,
    RestoreFailed,
    RestoreSnapshot,
    RestoreSucceeded,
    RetentionApplied,
    SnapshotFound,
    SnapshotRemoved,
    Stage,
    Staged,
    StageFailed,
    StartCold,
    StartedCold,
    Thaw,
    Thawed,
    WorkloadFailed,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Transfer


class BrokenInvariantError(AssertionError):
    """An invariant does not hold."""


SLOW, STILL_SLOW = 0.15, 0.8
"""So often a restore goes on when it is ordered, and when it is ordered again: some outlast the core's patience."""
MOST_CRASHES = CheckpointPolicy().quick_failure_threshold


def _is_return_of(restore_uid: str, workload_uid: str) -> bool:
    return f"{restore_uid}.".startswith(f"restore.{workload_uid}.")


@dataclass(slots=True)
class Process:
    workload: WorkloadRef
    identity: Identity
    lineage: str
    """One cold start and everything that continues it."""
    counter: int = 0
    origin: SnapshotRef | None = None
    frozen_by: str | None = None
    alive: bool = True
    killed_by: str | None = None
    kill_pending: bool = False
    """Killed in all but deed: it dies when its scheduler evicts it, and can be spared until then."""


@dataclass(slots=True)
class Snapshot:
    ref: SnapshotRef
    checkpoint_uid: str
    lineage: str
    counter: int
    discarded: bool = False
    restored: int = 0


@dataclass
class World:
    """Everything that is real: it outlives agents and coordinators."""

    rng: Random
    processes: dict[str, Process] = field(default_factory=dict)
    snapshots: dict[Identity, list[Snapshot]] = field(default_factory=dict)
    by_checkpoint: dict[str, Snapshot] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    """Workloads that will never run (again)."""
    quick_failures: list[tuple[str, str]] = field(default_factory=list)
    """Deaths that the runtime has not reported yet."""
    store_is_down: bool = False
    lineages: dict[str, int] = field(default_factory=dict)
    """Highest counter that any process of a lineage has reached."""
    saved: dict[Identity, int] = field(default_factory=dict)
    """Newest generation whose process was killed on our word that it is safe."""
    asked_for: dict[str, SnapshotRef] = field(default_factory=dict)
    """The very snapshots that a person asked for: older ones are his choice."""
    cancelled: set[str] = field(default_factory=set)
    """Checkpoints that an agent was told to undo."""
    crashed: set[str] = field(default_factory=set)
    """Workloads whose own program failed, soon after it was continued."""
    crashes: Counter[SnapshotRef] = field(default_factory=Counter)
    """Of those that their runtime has told of while the core knew them to be continued."""
    damaged: set[SnapshotRef] = field(default_factory=set)
    """Snapshots that nobody can read whole any more."""
    restarts: int = 0
    """Times that a workload came back from a snapshot."""
    beginnings: Counter[str] = field(default_factory=Counter)
    """How often the sandbox of a workload was made anew after something had been decided for the one before."""
    served: dict[str, int] = field(default_factory=dict)
    """By uid of a return: the beginning that its node has given to it. A node's disk keeps that."""
    coming: dict[str, SnapshotRef] = field(default_factory=dict)
    """By uid of a return: what its node is just continuing, and has not said so."""
    failed: set[str] = field(default_factory=set)
    """Returns of which a node has said that nothing of them runs."""
    outran: int = 0
    """Times that a workload came back after its node had said that it had failed it."""
    returns: Counter[int] = field(default_factory=Counter)
    """Of beginnings, by their number, those that were continued."""
    cut_off: set[str] = field(default_factory=set)
    """Workloads that were deleted by force, and run on where nobody sees them."""
    waited: int = 0
    """Times that a workload was cut off while another one took its place."""

    def run(self) -> None:
        """Every process that can executes one instruction."""
        origins: set[SnapshotRef] = set()
        for process in self.processes.values():
            if process.alive and process.frozen_by is None:
                process.counter += 1
                if process.counter > self.lineages[process.lineage]:
                    self.lineages[process.lineage] = process.counter
                if process.origin is not None:
                    if process.origin in origins:
                        raise BrokenInvariantError(f"1: two processes run from {process.origin}")
                    origins.add(process.origin)

    def die(self, process: Process, why: str) -> None:
        process.alive = False
        process.kill_pending = False
        process.frozen_by = None
        self.over.add(process.workload.uid)
        self.quick_failures.append((process.workload.uid, why))

    def begin_again(self, workload_uid: str) -> bool:
        """Its sandbox dies and is made anew; False: nothing was decided for it, and what is ordered is for the new one.

        Whoever runs in it is gone, and its runtime reports no end.
        """
        beginning = self.beginnings[workload_uid]
        if not any(of == beginning and _is_return_of(uid, workload_uid) for uid, of in self.served.items()):
            return False
        self.beginnings[workload_uid] += 1
        if (process := self.processes.pop(workload_uid, None)) is not None:
            process.alive, process.kill_pending, process.frozen_by = False, False, None
            self.processes[f"{workload_uid} in its sandbox {beginning}"] = process
        return True

    def serves(self, restore_uid: str, workload_uid: str) -> bool:
        """Whether a return is for the beginning that there is now; the first order of it decides."""
        beginning = self.beginnings[workload_uid]
        if restore_uid not in self.served:
            taken = [uid for uid, of in self.served.items() if of == beginning and _is_return_of(uid, workload_uid)]
            if taken:
                raise BrokenInvariantError(f"1: {restore_uid} and {taken} are for one beginning of {workload_uid}")
        return self.served.setdefault(restore_uid, beginning) == beginning

    def commit(self, dump: Dump, process: Process, counter: int) -> Snapshot:
        generations = self.snapshots.setdefault(dump.identity, [])
        ref = SnapshotRef(dump.identity, len(generations) + 1)
        snapshot = Snapshot(ref, dump.checkpoint_uid, process.lineage, counter)
        generations.append(snapshot)
        self.by_checkpoint[dump.checkpoint_uid] = snapshot
        return snapshot

    def find(self, ref: SnapshotRef) -> Snapshot | None:
        generations = self.snapshots.get(ref.identity, [])
        snapshot = generations[ref.generation - 1] if ref.generation <= len(generations) else None
        return None if snapshot is None or snapshot.discarded else snapshot

    def newest(
        self, identity: Identity, excluding: tuple[str, ...] = (), avoiding: tuple[int, ...] = ()
    ) -> Snapshot | None:
        for snapshot in reversed(self.snapshots.get(identity, [])):
            passed_over = snapshot.checkpoint_uid in excluding or snapshot.ref.generation in avoiding
            if not snapshot.discarded and not passed_over:
                return snapshot
        return None

    def continue_from(self, snapshot: Snapshot, workload: WorkloadRef, identity: Identity) -> None:
        self.check_predecessors(workload, identity)
        ref = snapshot.ref
        if ref.identity.namespace != identity.namespace:
            raise BrokenInvariantError(f"7: {ref} is restored as {identity}")
        if ref.identity.index != identity.index:
            raise BrokenInvariantError(f"8: {ref} is restored as {identity}")
        if any(p.alive and p.frozen_by is None and p.origin == ref for p in self.processes.values()):
            raise BrokenInvariantError(f"1: {ref} is restored while a process from it runs")
        if snapshot.checkpoint_uid in self.cancelled:
            raise BrokenInvariantError(f"3: {ref} is restored, {snapshot.checkpoint_uid} was called off")
        if self.crashes[ref] >= MOST_CRASHES:
            raise BrokenInvariantError(f"10: {ref} is restored, its program has failed {self.crashes[ref]} times")
        fork = ref == self.asked_for.get(workload.uid) or any(
            one.identity == ref.identity and one.generation > ref.generation for one in {*self.crashes, *self.damaged}
        )  # a person, or the policy, knows that work is lost
        if not fork and ref.generation < self.saved.get(ref.identity, 0):
            raise BrokenInvariantError(
                f"5: {ref} is restored, generation {self.saved[ref.identity]} was promised to be safe"
            )
        maker = next((p for p in self.processes.values() if p.killed_by == snapshot.checkpoint_uid), None)
        if (
            maker is not None
            and not fork
            and not snapshot.restored
            and self.lineages[snapshot.lineage] != snapshot.counter
        ):
            reached = self.lineages[snapshot.lineage]
            raise BrokenInvariantError(f"5: {ref} holds {snapshot.counter} instructions, {reached} had their effects")
        snapshot.restored += 1
        self.restarts += 1
        lineage = snapshot.lineage
        if self.lineages[lineage] != snapshot.counter:  # work was lost, and its scheduler was told: a new branch
            lineage = f"{workload.uid} {self.restarts}"
            self.lineages[lineage] = snapshot.counter
        self.returns[self.beginnings[workload.uid]] += 1
        self.processes[workload.uid] = Process(workload, identity, lineage, snapshot.counter, ref)

    def check_predecessors(self, workload: WorkloadRef, identity: Identity) -> None:
        """Nobody starts beside a workload of its identity that was cut off."""
        for uid in self.cut_off:
            if self.processes[uid].alive and self.processes[uid].identity == identity:
                raise BrokenInvariantError(f"11: {workload.uid} starts beside {uid}, which is cut off")

    def start_cold(self, order: StartCold, identity: Identity) -> None:
        self.check_predecessors(order.workload, identity)
        if order.why is None and self.saved.get(identity, 0) > 0:
            raise BrokenInvariantError(
                f"2: {identity} starts cold without a word, generation {self.saved[identity]} was safe"
            )
        lineage = f"{order.workload.uid} cold {self.beginnings[order.workload.uid]}"
        self.lineages[lineage] = 0
        self.processes[order.workload.uid] = Process(order.workload, identity, lineage)


class SimulatedAgent:
    """One life of one node's agent; a restart makes a new one, which remembers nothing."""

    def __init__(self, world: World, identities: dict[str, Identity]) -> None:
        self.world = world
        self.identities = identities
        self.cancelled: set[str] = set()
        self.refused: set[str] = set()
        self.dumps: dict[str, tuple[float, Dump, int]] = {}
        self.staged: set[str] = set()
        self.actions = {
            Freeze: self.freeze,
            Dump: self.dump,
            Kill: self.kill,
            Thaw: self.resume,
            Abort: self.abort,
            DiscardCancelled: self.discard,
            FindSnapshot: self.look_up,
            Stage: self.stage,
            RestoreSnapshot: self.continue_,
            StartCold: self.start_cold,
            FailWorkload: self.give_up,
            ApplyRetention: self.retain,
        }

    def perform(self, order: Order, now: float) -> Outcome | None:
        return self.actions[type(order)](order, now)  # type: ignore[operator,no-any-return]

    def freeze(self, order: Freeze, now: float) -> Outcome:
        process = self.world.processes.get(order.workload.uid)
        if order.checkpoint_uid in self.cancelled:
            return CheckpointFailed(order.checkpoint_uid, "it was called off")
        if process is None or not process.alive or process.kill_pending:
            return CheckpointFailed(order.checkpoint_uid, "it does not run")
        if process.frozen_by not in {None, order.checkpoint_uid}:
            return CheckpointFailed(order.checkpoint_uid, "another checkpoint has frozen it", retryable=True)
        process.frozen_by = order.checkpoint_uid
        return Frozen(order.checkpoint_uid)

    def dump(self, order: Dump, now: float) -> Outcome | None:
        uid = order.checkpoint_uid
        process = self.world.processes.get(order.workload.uid)
        if uid in self.cancelled:
            return CheckpointFailed(uid, "it was called off")
        if (snapshot := self.world.by_checkpoint.get(uid)) is not None:
            return Committed(uid, snapshot.ref, Transfer(1))
        if process is None or not process.alive or process.frozen_by != uid:
            return CheckpointFailed(uid, "it is not frozen")
        if uid not in self.dumps:
            self.dumps[uid] = (now + self.world.rng.expovariate(0.5), order, process.counter)
        return None

    def sandbox_died(self, workload_uid: str) -> list[Outcome]:
        """What becomes of the dumps of what ran in it."""
        lost = [uid for uid, (_, order, _) in self.dumps.items() if order.workload.uid == workload_uid]
        for uid in lost:
            del self.dumps[uid]
        return [CheckpointFailed(uid, "its sandbox has died", retryable=True) for uid in lost]

    def due(self, now: float) -> list[Outcome]:
        """What became of the dumps whose time has come."""
        if not self.dumps:
            return []
        return [self._finish(uid) for uid, (at, _, _) in list(self.dumps.items()) if at <= now]

    def _finish(self, uid: str) -> Outcome:
        _, order, counter = self.dumps.pop(uid)
        process = self.world.processes[order.workload.uid]
        chance = self.world.rng.random()
        if self.world.store_is_down or chance < 0.05:
            return CheckpointFailed(uid, "the store is down", retryable=True)
        if chance < 0.08 or (not process.alive and chance < 0.5):
            return CheckpointFailed(uid, "CRIU cannot dump it")
        return Committed(uid, self.world.commit(order, process, counter).ref, Transfer(1))

    def kill(self, order: Kill, now: float) -> Outcome:
        uid = order.checkpoint_uid
        process = self.world.processes.get(order.workload.uid)
        if process is not None and process.kill_pending and process.killed_by == uid:
            if order.insist:
                self.world.die(process, "released, and not deleted")
            return Killed(uid, still_frozen=process.alive)
        if order.insist:
            return Killed(uid)
        if process is not None and process.alive and uid not in self.cancelled:
            snapshot = self.world.by_checkpoint.get(uid)
            if snapshot is None or snapshot.discarded:
                raise BrokenInvariantError(f"5: {uid} kills {order.workload.uid}, and nothing is committed")
            if snapshot.counter != process.counter or process.frozen_by != uid:
                raise BrokenInvariantError(f"5: {order.workload.uid} ran on between its dump and its death")
            process.killed_by = uid
            self.world.saved[process.identity] = max(snapshot.ref.generation, self.world.saved.get(process.identity, 0))
            if self.world.rng.random() < 0.5:
                process.kill_pending = True
                return Killed(uid, still_frozen=True)
            self.world.die(process, "killed")
        return Killed(uid)

    def resume(self, order: Thaw, now: float) -> Outcome:
        self.cancelled.add(order.checkpoint_uid)
        process = self.world.processes.get(order.workload.uid)
        if process is not None and process.kill_pending and process.killed_by == order.checkpoint_uid:
            process.kill_pending, process.killed_by = False, None
        self._thaw(order.workload.uid, order.checkpoint_uid)
        return Thawed(order.checkpoint_uid)

    def abort(self, order: Abort, now: float) -> Outcome:
        uid = order.checkpoint_uid
        self.cancelled.add(uid)
        self.world.cancelled.add(uid)
        self.dumps.pop(uid, None)
        snapshot = self.world.by_checkpoint.get(uid)
        if snapshot is not None and not snapshot.discarded:
            if snapshot.restored:
                raise BrokenInvariantError(f"3: {snapshot.ref} was restored, and is called off")
            if any(p.killed_by == uid for p in self.world.processes.values()):
                raise BrokenInvariantError(f"6: {uid} is called off, its process was killed already")
            snapshot.discarded = not self.world.store_is_down
        self._thaw(order.workload.uid, uid)
        return Aborted(uid, cleanup_pending=self.world.store_is_down)

    def discard(self, order: DiscardCancelled, now: float) -> Outcome:
        uid = order.checkpoint_uid
        if self.world.store_is_down:
            return RemovalFailed(uid, "the store is down")
        if (snapshot := self.world.by_checkpoint.get(uid)) is not None:
            if any(process.killed_by == uid for process in self.world.processes.values()):
                raise BrokenInvariantError(f"6: {uid} is discarded, its process was killed already")
            snapshot.discarded = True
        return SnapshotRemoved(uid)

    def _thaw(self, workload_uid: str, uid: str) -> None:
        process = self.world.processes.get(workload_uid)
        if process is None or process.frozen_by != uid:
            return
        snapshot = self.world.by_checkpoint.get(uid)
        if snapshot is not None and snapshot.restored:
            raise BrokenInvariantError(f"5: {workload_uid} is thawed, it was restored from {snapshot.ref} already")
        process.frozen_by = None

    def look_up(self, order: FindSnapshot, now: float) -> Outcome | None:
        if self.world.store_is_down:
            return StageFailed(order.restore_uid, "the store is down", retryable=True)
        if order.requested_snapshot is not None:
            snapshot = self.world.find(order.requested_snapshot)
            if snapshot is None:
                return SnapshotFound(order.restore_uid, None, f"there is no {order.requested_snapshot}")
            if snapshot.checkpoint_uid in order.excluding:
                return SnapshotFound(order.restore_uid, None, f"{snapshot.ref} was cancelled")
        else:
            snapshot = self.world.newest(order.identity, order.excluding, order.avoiding)
        return SnapshotFound(order.restore_uid, snapshot.ref if snapshot else None)

    def stage(self, order: Stage, now: float) -> Outcome:
        chance = self.world.rng.random()
        if self.world.store_is_down or chance < 0.05:
            return StageFailed(order.restore_uid, "the store is down", retryable=True)
        if chance < 0.07:
            self.world.damaged.add(order.snapshot)
        if self.world.find(order.snapshot) is None or order.snapshot in self.world.damaged:
            return StageFailed(order.restore_uid, "a chunk is damaged", damaged=True)
        self.staged.add(order.restore_uid)
        return Staged(order.restore_uid)

    def continue_(self, order: RestoreSnapshot, now: float) -> Outcome | None:
        uid = order.workload.uid
        if not self.world.serves(order.restore_uid, uid):
            return None
        process = self.world.processes.get(uid)
        if process is not None and process.alive:
            return RestoreSucceeded(order.restore_uid)
        snapshot = self.world.find(order.snapshot)
        if uid in self.world.over or order.restore_uid in self.refused:
            return RestoreFailed(order.restore_uid, "it is over")
        if self.world.rng.random() < 0.03:
            self.world.coming.pop(order.restore_uid, None)
            self.world.failed.add(order.restore_uid)
            return RestoreFailed(order.restore_uid, "a PID is in use")
        if snapshot is None:
            raise BrokenInvariantError(f"3: {order.snapshot} is restored, and is not in the store")
        is_slow = self.world.rng.random() < (STILL_SLOW if order.restore_uid in self.world.coming else SLOW)
        if is_slow and order.restore_uid not in self.world.failed:
            self.world.coming[order.restore_uid] = order.snapshot
            return None  # the order is repeated
        self.world.coming.pop(order.restore_uid, None)
        self.world.continue_from(snapshot, order.workload, self.identities[uid])
        return RestoreSucceeded(order.restore_uid)

    def start_cold(self, order: StartCold, now: float) -> Outcome | None:
        uid = order.workload.uid
        if not self.world.serves(order.restore_uid, uid):
            return None
        self.refused.add(order.restore_uid)
        if uid not in self.world.processes and uid not in self.world.over:
            self.world.start_cold(order, self.identities[uid])
        return StartedCold(order.restore_uid)

    def give_up(self, order: FailWorkload, now: float) -> Outcome | None:
        uid = order.workload.uid
        if not self.world.serves(order.restore_uid, uid):
            return None
        process = self.world.processes.get(uid)
        if process is not None and process.alive:
            return RestoreSucceeded(order.restore_uid)
        self.refused.add(order.restore_uid)
        coming = self.world.find(ref) if (ref := self.world.coming.pop(order.restore_uid, None)) else None
        if coming is not None and uid not in self.world.over:  # an agent of an earlier version does not wait for it
            self.world.continue_from(coming, order.workload, self.identities[uid])
            self.world.outran += 1
        elif uid not in self.world.over:
            self.world.over.add(uid)
            self.world.quick_failures.append((uid, "given up"))
        return WorkloadFailed(order.restore_uid)

    def retain(self, order: ApplyRetention, now: float) -> Outcome:
        return RetentionApplied(order.checkpoint_uid)
