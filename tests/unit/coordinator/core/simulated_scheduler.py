"""A scheduler with its adapter: it starts, preempts, cancels and ends workloads, and is told how to go on.

What it is told must be true: a verdict that does not fit the world raises at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled, Report, Starting
from cedana_sched.coordinator.core import Core, Event, HoldPlaced, ReleaseDone, ReleaseFailed
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure, OnNodeLoss, OnRestoreFailure
from cedana_sched.model.preemption import INTERVAL, AfterCommit, Release, Signal, Verdict, Victim, WorkloadRef
from cedana_sched.model.records import HoldStep
from tests.unit.coordinator.core.simulated_node import BrokenInvariantError, World

POLICIES = (
    CheckpointPolicy(deadline_seconds=20, restore_deadline_seconds=30),
    CheckpointPolicy(deadline_seconds=5, restore_deadline_seconds=8, on_node_loss=OnNodeLoss.COLD_START),
    CheckpointPolicy(
        deadline_seconds=12,
        restore_deadline_seconds=15,
        on_checkpoint_failure=OnCheckpointFailure.KEEP_RUNNING,
        on_restore_failure=OnRestoreFailure.FAIL,
        on_node_loss=OnNodeLoss.FAIL,
    ),
)
IDENTITIES = (Identity("bio", "md", 0), Identity("bio", "md", 1), Identity("ml", "md", 0), Identity("bio", "solo", 0))
GANGS = {IDENTITIES[0]: "pair", IDENTITIES[1]: "pair"}


@dataclass(slots=True)
class Held:
    """A preemption as its scheduler knows it."""

    signal: Signal
    deadline: float
    until: float | None = None
    released: Release | None = None
    told: bool = False


@dataclass(slots=True)
class Job:
    """A workload as its scheduler knows it."""

    workload: WorkloadRef
    identity: Identity
    policy: CheckpointPolicy
    starting: Starting
    over: bool = False


class SimulatedScheduler:
    """It outlives coordinators, and repeats what is pending to each new one."""

    def __init__(self, rng: Random, world: World, nodes: list[str]) -> None:
        self.rng = rng
        self.world = world
        self.nodes = nodes
        self.now = 0.0
        self.identities: dict[str, Identity] = {}
        self.reports: list[Report] = []
        self.jobs: dict[str, Job] = {}
        self.held: dict[str, Held] = {}
        self.releases: list[Release] = []
        self.cancelled: set[str] = set()
        """Signals that it has called off while they were held."""
        self.eviction_cancelled: set[str] = set()
        """Signals whose victims it does not evict, although they were released."""
        self.unconfirmed: set[str] = set()
        """Those that were cut off, and of which nobody is told yet that they have ended."""
        self.count = 0

    def act(self, now: float) -> None:
        """It does something: starts, preempts, cancels, ends."""
        self.now = now
        chance = self.rng.random()
        if self.rng.random() < 0.08:
            self.cut_off()
        if self.rng.random() < 0.15:
            self.fence()
        running = [job for job in self.jobs.values() if not job.over]
        if self.rng.random() < 0.15:
            self.crash()
        if chance < 0.45 or not running:
            self.start()
        elif chance < 0.75:
            self.preempt(running)
        elif chance < 0.88 and self.held:
            held = self.rng.choice(list(self.held.values()))
            if held.released is None:
                self.cancelled.add(held.signal.uid)
                self.reports.append(PreemptionCancelled(held.signal.uid, "no need any more"))
        elif chance < 0.95:
            self.end(self.rng.choice(running), "done")

    def start(self) -> None:
        saved = [i for i in self.world.saved if not any(j.identity == i and not j.over for j in self.jobs.values())]
        identity = self.rng.choice(saved if saved and self.rng.random() < 0.8 else IDENTITIES)
        used = any(job.identity == identity and not job.over for job in self.jobs.values())
        if used and self.rng.random() > 0.12:
            return
        self.count += 1
        workload = WorkloadRef(f"w{self.count}", identity.namespace, identity.id, self.rng.choice(self.nodes))
        policy = self.rng.choice(POLICIES)
        requested_snapshot = self._some_snapshot(identity) if self.rng.random() < 0.08 else None
        self.identities[workload.uid] = identity
        if requested_snapshot is not None:
            self.world.asked_for[workload.uid] = requested_snapshot
        predecessors = [uid for uid in self.world.cut_off if self.identities[uid] == identity]
        self.world.waited += bool(predecessors)
        starting = Starting(
            workload, identity, policy, requested_snapshot, predecessor=", ".join(sorted(predecessors)) or None
        )
        self.jobs[workload.uid] = Job(workload, identity, policy, starting)
        self.reports.append(starting)

    def cut_off(self) -> None:
        """A workload is deleted by force, and its node does not see that; its adapter may have known nothing of it."""
        seen = [job for job in self.jobs.values() if not job.over and self._can_be_cut_off(job)]
        if not seen:
            return
        job = self.rng.choice(seen)
        job.over = True
        self.world.cut_off.add(job.workload.uid)
        if self.rng.random() < 0.5:
            self.reports.append(Ended(job.workload.uid, "it was deleted"))
        else:
            self.unconfirmed.add(job.workload.uid)

    def _can_be_cut_off(self, job: Job) -> bool:
        process = self.world.processes.get(job.workload.uid)
        is_running = process is not None and process.alive and process.frozen_by is None and not process.kill_pending
        rivals = [one for one in self.jobs.values() if one.identity == job.identity and not one.over and one is not job]
        return is_running and not rivals and not self.was_preempted(job.workload.uid)

    def fence(self, node: str | None = None) -> None:
        """Who was cut off has ended for certain: all of a node, or any one; who waits for that is reported again."""
        there = sorted(uid for uid in self.world.cut_off if node is None or self.jobs[uid].workload.node == node)
        for uid in there if node is not None else there[:1]:
            self.world.cut_off.remove(uid)
            self.unconfirmed.discard(uid)
            if self.world.processes[uid].alive:
                self.world.die(self.world.processes[uid], "it has ended for certain")
            for job in self.jobs.values():
                if job.identity == self.jobs[uid].identity and not job.over and job.starting.predecessor is not None:
                    job.starting = msgspec.structs.replace(job.starting, predecessor=self._predecessor_of(job))
                    self.reports.append(job.starting)

    def _predecessor_of(self, job: Job) -> str | None:
        return ", ".join(sorted(uid for uid in self.world.cut_off if self.identities[uid] == job.identity)) or None

    def begin_again(self, job: Job) -> None:
        """Its pod stays; what runs in it is made anew, and its node tells of that."""
        if self.world.begin_again(job.workload.uid):
            self.tell_beginning(job)

    def tell_beginning(self, job: Job) -> None:
        """Its node's agent does, and the adapter reports it."""
        job.starting = msgspec.structs.replace(job.starting, incarnation=job.starting.incarnation + 1)
        self.reports.append(job.starting)

    def _some_snapshot(self, identity: Identity) -> SnapshotRef | None:
        refs = [s.ref for snapshots in self.world.snapshots.values() for s in snapshots]
        newest = self.world.newest(identity)
        refs = [ref for ref in refs if ref.identity != identity or (newest is not None and ref == newest.ref)]
        return self.rng.choice(refs) if refs else None

    def preempt(self, running: list[Job]) -> None:
        jobs = self.rng.sample(running, min(self.rng.choice((1, 1, 2, 2, 3)), len(running)))
        if any(self.is_preempted(job) for job in jobs) and self.rng.random() < 0.6:
            return
        self.count += 1
        after = AfterCommit.STOP if self.rng.random() < 0.7 else AfterCommit.LEAVE_RUNNING
        is_periodic = after is AfterCommit.LEAVE_RUNNING and self.rng.random() < 0.6
        signal = Signal(
            uid=f"s{self.count}",
            adapter="sim",
            victims=tuple(Victim(j.workload, j.identity, j.policy, GANGS.get(j.identity)) for j in jobs),
            reason=INTERVAL if is_periodic else "InCohortReclamation",
            observed_at=self.now,
            not_after=self.now + self.rng.uniform(1, 20) if self.rng.random() < 0.2 else None,
            after_commit=after,
            release_group=self.rng.choice((None, None, "one preemptor", "another")),
        )
        self.reports.append(Preempted(signal))
        if after is AfterCommit.STOP:
            until = self.now + self.rng.uniform(1, 20) if self.rng.random() < 0.2 else None
            self.held[signal.uid] = Held(signal, float("inf"), until)  # held once the core knows of it

    def is_preempted(self, job: Job) -> bool:
        victims = {v.workload.uid for held in self.held.values() if held.released is None for v in held.signal.victims}
        return job.workload.uid in victims

    def hold(self, signal: Signal, core: Core) -> HoldPlaced:
        """The adapter holds the eviction, from now on."""
        held = self.held[signal.uid]
        known = core.registry.holds.get(signal.uid)
        policy_deadline = min(signal.observed_at + v.policy.deadline_seconds for v in signal.victims)
        if known is not None and known.step is HoldStep.HOLDING:
            held.deadline = max(min(policy_deadline, signal.not_after or policy_deadline), self.now)
        return HoldPlaced(signal.uid, held.until)

    def holds_until(self, placed: HoldPlaced) -> None:
        """The core was told when the hold ends by itself."""
        held = self.held[placed.signal_uid]
        if placed.until is not None:
            held.deadline = min(held.deadline, max(placed.until, self.now))

    def check_deadlines(self) -> None:
        for held in self.held.values():
            if held.released is None and self.now > held.deadline + 0.001:
                raise BrokenInvariantError(f"4: {held.signal.uid} is held past its deadline")

    def pending(self) -> list[Report]:
        """What the adapter reports to a new coordinator first."""
        reports: list[Report] = []
        for held in self.held.values():
            if not held.told:
                held.deadline = float("inf")  # the new one may know nothing of it before it hears this
                reports.append(Preempted(held.signal))
        reports += [PreemptionCancelled(uid, "another victim was chosen") for uid in sorted(self.eviction_cancelled)]
        for job in self.jobs.values():
            if job.workload.uid in self.unconfirmed:
                continue
            if job.over:
                reports.append(self.end_of(job.workload.uid, "it ended"))
            else:  # it looks at what there is, and does not know what the one before was told
                reports.append(job.starting)
        return reports

    def crash(self) -> None:
        """A program that was continued fails at once, with no preemption near."""
        back = [p for p in self.world.processes.values() if p.alive and p.origin is not None and p.frozen_by is None]
        back = [process for process in back if process.workload.uid not in self.world.cut_off]
        back = [process for process in back if not self.was_preempted(process.workload.uid)]
        if back:
            process = self.rng.choice(back)
            self.world.crashed.add(process.workload.uid)
            self.world.die(process, "crashed")

    def was_preempted(self, workload_uid: str) -> bool:
        return any(v.workload.uid == workload_uid for held in self.held.values() for v in held.signal.victims)

    def end_of(self, uid: str, why: str) -> Ended:
        return Ended(uid, why, failed=True, ran_seconds=1.0) if uid in self.world.crashed else Ended(uid, why)

    def report_deaths(self) -> None:
        """The runtime tells the scheduler, and so the adapter, which processes are gone."""
        for uid, why in self.world.quick_failures:
            self.reports.append(self.end_of(uid, why))
            self.jobs[uid].over = True
        self.world.quick_failures.clear()

    def release(self, release: Release, core: Core) -> None:
        """The adapter is told how the hold ended; its scheduler hears it later."""
        held = self.held[release.signal_uid]
        if held.told:
            self.releases.append(release)
            return  # a late repetition of the signal, after all was forgotten: whatever is said now does no harm
        if held.released is not None and not _is_repeated(held.released, release):
            raise BrokenInvariantError(f"4: {release.signal_uid} is released twice, with different verdicts")
        held.released = release
        for uid, verdict in release.verdicts.items():
            process = self.world.processes.get(uid)
            if verdict is Verdict.COMMITTED and not self.is_safe(uid, core):
                raise BrokenInvariantError(f"4: {uid} is let go as committed, and is not safe")
            if release.signal_uid in self.cancelled | self.eviction_cancelled:
                continue
            if verdict is Verdict.NOT_NEEDED and process is not None and process.alive:
                raise BrokenInvariantError(f"4: {uid} runs, and its scheduler is told that it need not be saved")
            if (
                verdict is not Verdict.COMMITTED
                and process is not None
                and process.killed_by
                and not process.kill_pending
            ):
                maker = core.registry.checkpoints.get(process.killed_by)
                if maker is not None and maker.signal_uid == release.signal_uid:
                    raise BrokenInvariantError(f"4: {uid} was committed and killed, its scheduler is told {verdict}")
        if release not in self.releases:
            self.releases.append(release)

    def is_safe(self, workload_uid: str, core: Core) -> bool:
        """Whether a snapshot of this workload is committed, and it executes nothing any more."""
        process = self.world.processes.get(workload_uid)
        if process is not None and process.alive and process.frozen_by is None:
            return False
        made = [c for c in core.registry.checkpoints_of_workload(workload_uid) if c.snapshot and not c.cancelled]
        return any(self.world.find(c.snapshot) for c in made if c.snapshot)

    def hear_release(self, *, calm: bool) -> Event | None:
        """The adapter tells its scheduler; what it evicts dies."""
        if not self.releases:
            return None
        release = self.releases.pop(self.rng.randrange(len(self.releases)))
        if not calm and self.rng.random() < 0.3:
            self.releases.append(release)
            return ReleaseFailed(release.signal_uid, "the scheduler is away")
        self.held[release.signal_uid].told = True
        doomed = [
            uid for uid in release.verdicts if (p := self.world.processes.get(uid)) is not None and p.kill_pending
        ]
        if doomed and not calm and self.rng.random() < 0.3:
            self.eviction_cancelled.add(release.signal_uid)
            self.reports.append(PreemptionCancelled(release.signal_uid, "another victim was chosen"))
            return ReleaseDone(release.signal_uid)
        for uid, verdict in release.verdicts.items():
            if uid in doomed and self.rng.random() < 0.2:
                continue  # its deletion fails, or never comes
            if verdict in {Verdict.EVICT, Verdict.COMMITTED} and not self.jobs[uid].over:
                self.end(self.jobs[uid], "evicted")
        return ReleaseDone(release.signal_uid)

    def end(self, job: Job, why: str) -> None:
        if not job.over:
            job.over = True
            process = self.world.processes.get(job.workload.uid)
            if process is not None and process.alive:
                self.world.die(process, why)
            else:
                self.world.over.add(job.workload.uid)
                self.reports.append(Ended(job.workload.uid, why))


def _is_repeated(before: Release, now: Release) -> bool:
    """Whether it says the same, but for whom it has told to be spared meanwhile."""
    return before.verdicts.keys() == now.verdicts.keys() and all(
        verdict == before.verdicts[uid] or (before.verdicts[uid], verdict) == (Verdict.COMMITTED, Verdict.NOT_NEEDED)
        for uid, verdict in now.verdicts.items()
    )
