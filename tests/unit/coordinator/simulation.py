"""One core among simulated nodes, a scheduler and a network that does everything a network may do.

A schedule is a seed: the same seed plays the same story. Orders and answers are lost, repeated, delayed and
overtake each other; agents, nodes and the coordinator die at any instant, the coordinator also between writing
its records and sending its orders. After a schedule the faults stop, and everything must come to rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled, Report, Starting
from cedana_sched.coordinator.core import (
    AgentRestarted,
    Core,
    Event,
    HoldPlaced,
    Instruction,
    NodeLost,
    OrderLost,
    Persist,
    PlaceHold,
    ReleaseDone,
    ReleaseFailed,
    ReleaseHold,
    Reported,
    Send,
    Tick,
    Timing,
    violations,
)
from cedana_sched.model import codec
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import Order, StartCold
from cedana_sched.model.policy import CheckpointPolicy, OnCheckpointFailure, OnRestoreFailure
from cedana_sched.model.preemption import After, Release, Signal, Verdict, Victim, WorkloadRef
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    HoldStep,
    PreemptionHold,
    Record,
    Restore,
    RestoreStep,
)
from tests.unit.coordinator.simulated_node import BrokenInvariantError, SimulatedAgent, World

TIMING = Timing(resend=3.0, resend_most=12.0, lost=0.5, retry=0.5, retry_most=4.0, confirm=10.0, remember=30.0)
POLICIES = (
    CheckpointPolicy(deadline_seconds=20, restore_deadline_seconds=30),
    CheckpointPolicy(deadline_seconds=5, restore_deadline_seconds=8),
    CheckpointPolicy(
        deadline_seconds=12,
        restore_deadline_seconds=15,
        on_checkpoint_failure=OnCheckpointFailure.KEEP_RUNNING,
        on_restore_failure=OnRestoreFailure.FAIL,
    ),
)
IDENTITIES = (Identity("bio", "md", 0), Identity("bio", "md", 1), Identity("ml", "md", 0), Identity("bio", "solo", 0))
GANGS = {IDENTITIES[0]: "pair", IDENTITIES[1]: "pair"}
UNDECIDED = frozenset(
    {CheckpointStep.FREEZING, CheckpointStep.FROZEN, CheckpointStep.DUMPING, CheckpointStep.COMMITTED}
)


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


@dataclass
class Simulation:
    """See the module; `run` plays one schedule."""

    seed: int
    steps: int = 150
    core_type: type[Core] = Core
    agent_type: type[SimulatedAgent] = SimulatedAgent
    story: list[tuple[float, str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.now = 1000.0
        self.world = World(self.rng)
        self.identities: dict[str, Identity] = {}
        self.nodes = ["n1", "n2"]
        self.agents = {node: self.agent_type(self.world, self.identities) for node in self.nodes}
        self.journal: dict[str, Record] = {}
        self.core, _ = self.core_type.recover([], self.now, TIMING)
        self.orders: list[tuple[str, Order, SimulatedAgent]] = []
        self.answers: list[Event] = []
        self.reports: list[Report] = []
        self.events: list[Event] = []
        self.jobs: dict[str, Job] = {}
        self.held: dict[str, Held] = {}
        self.releases: list[Release] = []
        self.calm = False
        self.count = 0
        self.cold: set[str] = set()

    # -- the schedule

    def run(self) -> Simulation:
        """Play the whole schedule, then let everything come to rest."""
        for _ in range(self.steps):
            self.step()
        self.rest()
        return self

    def step(self) -> None:
        """One thing happens, whichever."""
        chance = self.rng.random()
        if chance < 0.60 and self.has_messages():
            self.deliver()
        elif chance < 0.74:
            self.pass_time(self.rng.expovariate(1.0))
        elif chance < 0.87:
            self.schedule()
        elif chance < 0.94:
            self.deliver_releases()
        elif chance < 0.97:
            self.tell(Tick())
        else:
            self.fault()

    def rest(self) -> None:
        """No more faults: everything is delivered, time passes, and nothing may be left half done."""
        self.calm, self.world.store_is_down = True, False
        for _ in range(400):
            while self.has_messages():
                self.deliver()
            self.deliver_releases()
            if self.has_messages():
                continue
            if self.is_at_rest():
                break
            self.pass_time(max((self.core.next_deadline() or self.now) - self.now, 0.5))
        else:
            self.fail(f"9: not at rest: {[r for r in self.core.records() if not _is_at_rest(r)]}")
        self.check_the_end()

    def has_messages(self) -> bool:
        return bool(self.orders or self.answers or self.reports or self.events or self.world.deaths)

    def is_at_rest(self) -> bool:
        return all(map(_is_at_rest, self.core.records())) and not any(a.dumps for a in self.agents.values())

    def check_the_end(self) -> None:
        for process in self.world.processes.values():
            if process.alive and process.frozen_by is not None:
                self.fail(f"6: {process.workload.uid} is frozen for ever by {process.frozen_by}")
        for held in self.held.values():
            if held.released is None:
                self.fail(f"4: {held.signal.uid} is never released")
        for job in self.jobs.values():
            if not job.over and job.workload.uid not in self.world.processes:
                self.fail(f"9: {job.workload.uid} waits for ever to be started")

    # -- time, messages

    def pass_time(self, seconds: float) -> None:
        """Time passes; processes run, dumps end, and the core is woken at its deadline, not before."""
        end = self.now + seconds
        while True:
            due = self.core.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.tell(Tick())
        self.now = end
        self.world.run()
        for agent in self.agents.values():
            self.answers.extend(agent.due(end))
        for held in self.held.values():
            if held.released is None and end > held.deadline + 0.001:
                self.fail(f"4: {held.signal.uid} is held past its deadline")

    def deliver(self) -> None:
        """Deliver, lose or repeat one message; reports of the adapter come in order and are never lost."""
        for uid, why in self.world.deaths:
            self.reports.append(Ended(uid, why))
            self.jobs[uid].over = True
        self.world.deaths.clear()
        if self.events:
            self.tell(self.events.pop(0))
            return
        waiting = len(self.orders) + len(self.answers) + len(self.reports)
        if not waiting:
            return
        index = self.rng.randrange(waiting)
        chance = 1.0 if self.calm else self.rng.random()
        if index < len(self.reports):
            self.deliver_report(repeat=chance < 0.1)
        elif index < len(self.reports) + len(self.answers):
            self.deliver_answer(index - len(self.reports), chance)
        else:
            self.deliver_order(index - len(self.reports) - len(self.answers), chance)

    def deliver_report(self, *, repeat: bool) -> None:
        report = self.reports.pop(0)
        for _ in range(1 + repeat):
            self.tell(Reported("sim", report))

    def deliver_answer(self, index: int, chance: float) -> None:
        answer = self.answers[index]
        if chance > 0.1 or chance < 0.06:
            self.answers.pop(index)
        if chance > 0.06:  # between the two it is delivered, and stays to be delivered again
            self.tell(answer)

    def deliver_order(self, index: int, chance: float) -> None:
        node, order, agent = self.orders[index]
        if chance > 0.1 or chance < 0.06:
            self.orders.pop(index)
        if chance < 0.04:
            return
        if chance < 0.06 or self.agents.get(node) is not agent:
            self.answers.append(OrderLost(order, "its agent is gone"))
            return
        self.note("order", order)
        outcome = agent.perform(order, self.now)
        if outcome is not None:
            self.answers.append(outcome)

    def tell(self, event: Event) -> None:
        """Tell the core, carry out what it says, and look whether everything still holds."""
        self.note("event", event)
        self.carry_out(self.core.handle(event, self.now))
        self.check()

    def carry_out(self, instructions: Iterable[Instruction]) -> None:
        crash = not self.calm and self.rng.random() < 0.02
        for instruction in instructions:
            if crash and self.rng.random() < 0.5:
                self.restart_coordinator()
                return
            if isinstance(instruction, Persist):
                for record in instruction.records:
                    self.journal[record.uid] = record
                for record in instruction.forget:
                    del self.journal[record.uid]
            elif isinstance(instruction, Send):
                self.send(instruction)
            elif isinstance(instruction, PlaceHold):
                self.place_hold(instruction.signal)
            elif isinstance(instruction, ReleaseHold):
                self.release(instruction.release)

    def send(self, send: Send) -> None:
        self.note("send", send.order)
        first = isinstance(send.order, StartCold) and send.order.restore_uid not in self.cold
        if isinstance(send.order, StartCold) and first and send.order.why is None:
            self.cold.add(send.order.restore_uid)
            identity = self.identities[send.order.workload.uid]
            for checkpoint in self.core.book.of_identity(identity):
                if checkpoint.step in UNDECIDED and checkpoint.workload.uid != send.order.workload.uid:
                    self.fail(f"2: {send.order.workload.uid} starts cold, {checkpoint.uid} is {checkpoint.step}")
        agent = self.agents.get(send.node)
        if agent is not None:
            self.orders.append((send.node, send.order, agent))

    # -- the scheduler and its adapter

    def schedule(self) -> None:
        """The scheduler does something: starts, preempts, cancels, ends."""
        chance = self.rng.random()
        running = [job for job in self.jobs.values() if not job.over]
        if chance < 0.45 or not running:
            self.start()
        elif chance < 0.75:
            self.preempt(running)
        elif chance < 0.88 and self.held:
            held = self.rng.choice(list(self.held.values()))
            if held.released is None:
                self.reports.append(PreemptionCancelled(held.signal.uid, "no need any more"))
        elif chance < 0.94:
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
        wanted = self._some_snapshot(identity) if self.rng.random() < 0.08 else None
        self.identities[workload.uid] = identity
        if wanted is not None:
            self.world.asked_for[workload.uid] = wanted
        starting = Starting(workload, identity, policy, wanted)
        self.jobs[workload.uid] = Job(workload, identity, policy, starting)
        self.reports.append(starting)

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
        after = After.STOP if self.rng.random() < 0.8 else After.CONTINUE
        signal = Signal(
            uid=f"s{self.count}",
            adapter="sim",
            victims=tuple(Victim(j.workload, j.identity, j.policy, GANGS.get(j.identity)) for j in jobs),
            reason="InCohortReclamation",
            observed_at=self.now,
            not_after=self.now + self.rng.uniform(1, 20) if self.rng.random() < 0.2 else None,
            after=after,
        )
        self.reports.append(Preempted(signal))
        if after is After.STOP:
            deadline = min(self.now + job.policy.deadline_seconds for job in jobs)
            deadline = min(deadline, signal.not_after or deadline)
            until = self.now + self.rng.uniform(1, 20) if self.rng.random() < 0.2 else None
            self.held[signal.uid] = Held(signal, deadline, until)
            # the scheduler waits for the report: held from the moment the core knows
            self.held[signal.uid].deadline = float("inf")

    def is_preempted(self, job: Job) -> bool:
        victims = {v.workload.uid for held in self.held.values() if held.released is None for v in held.signal.victims}
        return job.workload.uid in victims

    def place_hold(self, signal: Signal) -> None:
        held = self.held[signal.uid]
        known = self.core.book.holds.get(signal.uid)
        policy_deadline = min(signal.observed_at + v.policy.deadline_seconds for v in signal.victims)
        if known is not None and known.step is HoldStep.HOLDING:
            held.deadline = max(min(policy_deadline, signal.not_after or policy_deadline), self.now)
        self.answers.append(HoldPlaced(signal.uid, held.until))

    def release(self, release: Release) -> None:
        held = self.held[release.signal_uid]
        if held.released is not None and held.released != release:
            self.fail(f"4: {release.signal_uid} is released twice, with different verdicts")
        held.released = release
        for uid, verdict in release.verdicts.items():
            process = self.world.processes.get(uid)
            if verdict is Verdict.COMMITTED and not self.is_safe(uid, release.signal_uid):
                self.fail(f"4: {uid} is let go as committed, and is not safe")
            if verdict is not Verdict.COMMITTED and process is not None and process.killed_by:
                maker = self.core.book.checkpoints.get(process.killed_by)
                if maker is not None and maker.signal_uid == release.signal_uid:
                    self.fail(f"4: {uid} was committed and killed, its scheduler is told {verdict}")
        if release not in self.releases:
            self.releases.append(release)

    def is_safe(self, workload_uid: str, signal_uid: str) -> bool:
        """Whether a snapshot of this workload is committed, and it executes nothing any more."""
        process = self.world.processes.get(workload_uid)
        if process is not None and process.alive and process.frozen_by is None:
            return False
        made = [c for c in self.core.book.of_workload(workload_uid) if c.snapshot and not c.called_off]
        return any(self.world.find(c.snapshot) for c in made if c.snapshot)

    def deliver_releases(self) -> None:
        """The adapter tells its scheduler; what it evicts dies."""
        if not self.releases:
            return
        release = self.releases.pop(self.rng.randrange(len(self.releases)))
        if not self.calm and self.rng.random() < 0.3:
            self.releases.append(release)
            self.tell(ReleaseFailed(release.signal_uid, "the scheduler is away"))
            return
        self.held[release.signal_uid].told = True
        for uid, verdict in release.verdicts.items():
            if verdict in {Verdict.LET_GO, Verdict.COMMITTED} and not self.jobs[uid].over:
                self.end(self.jobs[uid], "evicted")
        self.tell(ReleaseDone(release.signal_uid))

    def end(self, job: Job, why: str) -> None:
        if not job.over:
            job.over = True
            process = self.world.processes.get(job.workload.uid)
            if process is not None and process.alive:
                self.world.die(process, why)
            else:
                self.world.over.add(job.workload.uid)
                self.reports.append(Ended(job.workload.uid, why))

    # -- faults

    def fault(self) -> None:
        chance = self.rng.random()
        if chance < 0.4:
            self.restart_agent(self.rng.choice(self.nodes))
        elif chance < 0.7:
            self.restart_coordinator()
        elif chance < 0.9:
            self.world.store_is_down = not self.world.store_is_down
        else:
            self.lose_node(self.rng.choice(self.nodes))

    def restart_agent(self, node: str) -> None:
        self.note("fault", f"agent of {node} restarts")
        self.agents[node] = self.agent_type(self.world, self.identities)
        self.tell(AgentRestarted(node))

    def lose_node(self, node: str) -> None:
        self.note("fault", f"node {node} is lost")
        del self.agents[node]
        self.nodes[self.nodes.index(node)] = f"{node}x"
        self.agents[f"{node}x"] = self.agent_type(self.world, self.identities)
        for job in self.jobs.values():
            if job.workload.node == node:
                self.end(job, "its node is lost")
        self.tell(NodeLost(node))

    def restart_coordinator(self) -> None:
        """The coordinator dies and comes back with what was saved; the adapter repeats what is pending."""
        self.note("fault", "coordinator restarts")
        for uid, record in self.journal.items():
            self.journal[uid] = codec.decode(codec.encode(record), Record)  # type: ignore[arg-type]
        self.answers = [answer for answer in self.answers if self.rng.random() < 0.5]
        self.releases.clear()
        self.core, instructions = self.core_type.recover(self.journal.values(), self.now, TIMING)
        pending: list[Report] = [Preempted(held.signal) for held in self.held.values() if not held.told]
        for job in self.jobs.values():
            if job.over:
                pending.append(Ended(job.workload.uid, "it ended"))
            elif job.workload.uid not in self.world.processes:
                pending.append(job.starting)
        self.reports[:0] = pending
        for node in {job.workload.node for job in self.jobs.values()} - set(self.nodes):
            self.events.append(NodeLost(node))
        self.carry_out(instructions)
        self.check()

    # -- looking

    def check(self) -> None:
        if broken := violations(self.core):
            self.fail("; ".join(broken))

    def note(self, kind: str, what: Any) -> None:
        self.story.append((self.now, kind, what))

    def fail(self, sentence: str) -> None:
        raise BrokenInvariantError(sentence)


def _is_at_rest(record: Record) -> bool:
    if isinstance(record, Checkpoint):
        return record.settled and not record.unconfirmed
    if isinstance(record, PreemptionHold):
        return record.step is HoldStep.RELEASED
    return record.step in {RestoreStep.RUNNING, RestoreStep.ENDED} or record.finished_at is not None


def play(seed: int, make: Callable[[int], Simulation] = Simulation) -> Simulation:
    """Play one schedule; a failure names the seed and tells its story."""
    simulation = make(seed)
    try:
        return simulation.run()
    except Exception as error:
        raise BrokenInvariantError(f"{error}\nseed {seed}\n{tell_story(simulation)}") from error


def tell_story(simulation: Simulation, lines: int = 120) -> str:
    return "\n".join(f"{at:9.3f} {kind:6} {what}" for at, kind, what in simulation.story[-lines:])


__all__ = ["Restore", "Simulation", "play", "tell_story"]
