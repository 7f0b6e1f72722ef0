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

from cedana_sched.adapter.contract import Ended
from cedana_sched.coordinator.core import (
    Core,
    Event,
    HoldPlaced,
    Instruction,
    NodeLost,
    OrderLost,
    Persist,
    PlaceHold,
    ReleaseHold,
    Reported,
    Send,
    Tick,
    Timing,
    forbidden_order,
    violations,
)
from cedana_sched.coordinator.core.checkpoint_steps import may_have_left_a_snapshot
from cedana_sched.coordinator.core.record_registry import is_unconfirmed
from cedana_sched.model import codec
from cedana_sched.model.orders import Order, StartCold
from cedana_sched.model.records import (
    Checkpoint,
    CheckpointStep,
    HoldStep,
    PreemptionHold,
    Record,
    Restore,
    RestoreStep,
)
from tests.unit.coordinator.core.expected_losses import ExpectedLosses
from tests.unit.coordinator.core.simulated_node import BrokenInvariantError, SimulatedAgent, World
from tests.unit.coordinator.core.simulated_scheduler import SimulatedScheduler

TIMING = Timing(
    resend=3.0,
    resend_most=12.0,
    lost=0.5,
    retry=0.5,
    retry_most=4.0,
    confirm=10.0,
    patience=5.0,
    remember=30.0,
    remember_deaths=1e6,
)
UNDECIDED = frozenset(
    {CheckpointStep.FREEZING, CheckpointStep.FROZEN, CheckpointStep.DUMPING, CheckpointStep.COMMITTED}
)


@dataclass
class Simulation:
    """See the module; `run` plays one schedule."""

    seed: int
    steps: int = 110
    core_type: type[Core] = Core
    agent_type: type[SimulatedAgent] = SimulatedAgent
    story: list[tuple[float, str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        self.now = 1000.0
        self.world = World(self.rng)
        self.nodes = ["n1", "n2"]
        self.scheduler = SimulatedScheduler(self.rng, self.world, self.nodes)
        self.identities = self.scheduler.identities
        self.reports = self.scheduler.reports
        self.agents = {node: self.agent_type(self.world, self.identities) for node in self.nodes}
        self.journal: dict[str, Record] = {}
        self.core, _ = self.core_type.recover([], self.now, TIMING)
        self.orders: list[tuple[str, Order, SimulatedAgent]] = []
        self.answers: list[Event] = []
        self.events: list[Event] = []
        self.calm = False
        self.cold: set[str] = set()
        self.crashed: set[str] = set()
        """Workloads of which it is counted."""
        self.losses = ExpectedLosses()

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
            self.scheduler.act(self.now)
        elif chance < 0.94:
            self.deliver_releases()
        elif chance < 0.97:
            self.tell(Tick())
        else:
            self.fault()

    def rest(self) -> None:
        """No more faults: everything is delivered, time passes, and nothing may be left half done."""
        self.calm, self.world.store_is_down = True, False
        while self.world.cut_off:
            self.scheduler.fence()
        for _ in range(400):
            while self.has_messages():
                self.deliver()
            self.deliver_releases()
            self.look_for_beginnings()
            if self.has_messages():
                continue
            if self.is_at_rest():
                break
            self.pass_time(max((self.core.next_deadline() or self.now) - self.now, 0.5))
        else:
            self.fail(f"9: not at rest: {[r for r in self.core.records() if not self.is_settled(r)]}")
        self.check_the_end()

    def has_messages(self) -> bool:
        return bool(self.orders or self.answers or self.reports or self.events or self.world.quick_failures)

    def is_at_rest(self) -> bool:
        return all(self.is_settled(record) for record in self.core.records()) and not any(
            a.dumps for a in self.agents.values()
        )

    def is_settled(self, record: Record) -> bool:
        """Whether nothing happens to it any more. Who was given up, and runs, waits for its end."""
        if isinstance(record, Restore) and is_unconfirmed(record):
            process = self.world.processes.get(record.workload.uid)
            return process is not None and process.alive
        if isinstance(record, Checkpoint) and may_have_left_a_snapshot(record):
            return record.workload.node not in self.nodes  # which never says more
        return _is_at_rest(record)

    def check_the_end(self) -> None:
        for process in self.world.processes.values():
            if process.alive and process.frozen_by is not None:
                self.fail(f"6: {process.workload.uid} is frozen for ever by {process.frozen_by}")
        for held in self.scheduler.held.values():
            if held.released is None:
                self.fail(f"4: {held.signal.uid} is never released")
        for job in self.scheduler.jobs.values():
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
        self.scheduler.now = end
        self.scheduler.check_deadlines()
        self.look_for_beginnings()

    def look_for_beginnings(self) -> None:
        """An agent sees a pod that waits, and that all its returns are over, and tells of it."""
        for job in self.scheduler.jobs.values():
            latest = self.core.registry.latest_restore_of_workload(job.workload.uid)
            is_over = latest is not None and latest.step is RestoreStep.ENDED
            waits = not job.over and job.workload.uid not in self.world.processes
            if is_over and waits and latest is not None and latest.incarnation == job.starting.incarnation:
                self.scheduler.tell_beginning(job)

    def deliver(self) -> None:
        """Deliver, lose or repeat one message; reports of the adapter come in order and are never lost."""
        self.scheduler.report_deaths()
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
            if isinstance(answer, HoldPlaced):
                self.scheduler.holds_until(answer)
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

    def deliver_releases(self) -> None:
        """The adapter tells its scheduler how to go on."""
        event = self.scheduler.hear_release(calm=self.calm)
        if event is not None:
            self.tell(event)

    def tell(self, event: Event) -> None:
        """Tell the core, carry out what it says, and look whether everything still holds."""
        self.note("event", event)
        self.count_crash(event)
        self.carry_out(self.core.handle(event, self.now))
        self.losses.on_event(event, self.core)
        self.check()

    def count_crash(self, event: Event) -> None:
        """What the core cannot know (an answer was lost, it had given up) it need not count. Ends are told twice."""
        if isinstance(event, Reported) and isinstance(event.report, Ended) and event.report.failed:
            if event.report.workload_uid in self.crashed:
                return
            restore = self.core.registry.latest_restore_of_workload(event.report.workload_uid)
            known = {RestoreStep.RESTORING, RestoreStep.RUNNING}
            if restore is not None and restore.step in known and restore.snapshot is not None and not restore.cold:
                self.world.crashes[restore.snapshot] += 1
                self.crashed.add(event.report.workload_uid)

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
                self.answers.append(self.scheduler.hold(instruction.signal, self.core))
            elif isinstance(instruction, ReleaseHold):
                self.scheduler.release(instruction.release, self.core)

    def send(self, send: Send) -> None:
        self.note("send", send.order)
        if broken := forbidden_order(self.core, send.order):
            self.fail(broken)
        if broken := self.losses.forbidden_order(send.order, self.core):
            self.fail(broken)
        first = isinstance(send.order, StartCold) and send.order.restore_uid not in self.cold
        if isinstance(send.order, StartCold) and first and send.order.why is None:
            self.cold.add(send.order.restore_uid)
            identity = self.identities[send.order.workload.uid]
            for checkpoint in self.core.registry.checkpoints_of_identity(identity, send.order.workload):
                if checkpoint.step in UNDECIDED and checkpoint.workload.uid != send.order.workload.uid:
                    self.fail(f"2: {send.order.workload.uid} starts cold, {checkpoint.uid} is {checkpoint.step}")
        agent = self.agents.get(send.node)
        if agent is not None:
            self.orders.append((send.node, send.order, agent))

    # -- faults

    def fault(self) -> None:
        chance = self.rng.random()
        if self.rng.random() < 0.4:
            self.kill_sandbox()
        elif chance < 0.4:
            self.restart_agent(self.rng.choice(self.nodes))
        elif chance < 0.7:
            self.restart_coordinator()
        elif chance < 0.9:
            self.world.store_is_down = not self.world.store_is_down
        else:
            self.lose_node(self.rng.choice(self.nodes))

    def kill_sandbox(self) -> None:
        """That of any workload that is there, or of all on a node, which reboots."""
        there = [job for job in self.scheduler.jobs.values() if not job.over and job.workload.node in self.nodes]
        if not there:
            return
        saved = [job for job in there if self.world.newest(job.identity) is not None]
        hit = self.rng.choice(saved if saved and self.rng.random() < 0.7 else there)
        reboots = self.rng.random() < 0.3
        for job in there if reboots else [hit]:
            if job.workload.node == hit.workload.node:
                self.note("fault", f"sandbox of {job.workload.uid} dies")
                self.answers.extend(self.agents[job.workload.node].sandbox_died(job.workload.uid))
                self.scheduler.begin_again(job)
        if reboots:
            self.restart_agent(hit.workload.node)

    def restart_agent(self, node: str) -> None:
        self.note("fault", f"agent of {node} restarts")
        self.agents[node] = self.agent_type(self.world, self.identities)

    def lose_node(self, node: str) -> None:
        self.note("fault", f"node {node} is lost")
        del self.agents[node]
        self.losses.on_node_lost(node, self.core, self.world)
        self.nodes[self.nodes.index(node)] = f"{node}x"
        self.agents[f"{node}x"] = self.agent_type(self.world, self.identities)
        for job in self.scheduler.jobs.values():
            if job.workload.node == node:
                self.scheduler.end(job, "its node is lost")
        self.scheduler.fence(node)
        self.tell(NodeLost(node))

    def restart_coordinator(self) -> None:
        """The coordinator dies and comes back with what was saved; the adapter repeats what is pending."""
        self.note("fault", "coordinator restarts")
        for uid, record in self.journal.items():
            self.journal[uid] = codec.decode(codec.encode(record), Record)  # type: ignore[arg-type]
        self.answers = [answer for answer in self.answers if self.rng.random() < 0.5]
        self.scheduler.releases.clear()
        self.core, instructions = self.core_type.recover(self.journal.values(), self.now, TIMING)
        self.reports[:] = self.scheduler.pending()  # what an earlier process has queued is gone with it
        for node in {job.workload.node for job in self.scheduler.jobs.values()} - set(self.nodes):
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
        return record.is_terminal and not record.unconfirmed and not record.kill_pending
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
