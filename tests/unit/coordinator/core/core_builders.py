"""Words for the core's unit tests: a core that one tells things, and asks what it said and where it stands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled, Report, Starting
from cedana_sched.coordinator.core import (
    Core,
    Event,
    Instruction,
    Persist,
    PublishEvent,
    ReleaseDone,
    ReleaseHold,
    Reported,
    Send,
    Tick,
    forbidden_order,
    record_uid_of,
    violations,
)
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.orders import (
    Aborted,
    CheckpointFailed,
    Committed,
    Frozen,
    Killed,
    Order,
    SnapshotFound,
    StartedCold,
)
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import INTERVAL, AfterCommit, Release, Signal, Victim, WorkloadRef
from cedana_sched.model.records import Record, Transfer

O = TypeVar("O")  # noqa: E741 - an order or any other instruction

MD = Identity("bio", "md")
POLICY = CheckpointPolicy(deadline_seconds=60, restore_deadline_seconds=90)


def workload(uid: str, node: str = "n1", namespace: str = "bio") -> WorkloadRef:
    return WorkloadRef(uid, namespace, f"name-of-{uid}", node)


def victim(
    uid: str = "w1",
    identity: Identity = MD,
    policy: CheckpointPolicy = POLICY,
    gang: str | None = None,
    node: str = "n1",
) -> Victim:
    return Victim(workload(uid, node), identity, policy, gang)


def ref(generation: int, identity: Identity = MD) -> SnapshotRef:
    return SnapshotRef(identity, generation)


class Told:
    """A core under test. Every event is followed by a look at the invariants."""

    def __init__(self, core: Core | None = None, now: float = 1000.0) -> None:
        self.core = core or Core()
        self.now = now
        self.said: list[Instruction] = []
        self.saved: dict[str, Record] = {}

    def tell(self, *events: Event) -> Told:
        """What was said before is forgotten; `said` holds the answer to these."""
        self.said = []
        for event in events:
            self._take(self.core.handle(event, self.now))
        return self

    def report(self, *reports: Report) -> Told:
        return self.tell(*(Reported("kueue", report) for report in reports))

    def after(self, seconds: float) -> Told:
        self.now += seconds
        return self.tell(Tick())

    def restart(self) -> Told:
        """The coordinator dies, and another one carries on from what was saved."""
        self.said = []
        self.core, instructions = Core.recover(self.saved.values(), self.now)
        self._take(instructions)
        return self

    def _take(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self.said.append(instruction)
            if isinstance(instruction, Send):
                assert forbidden_order(self.core, instruction.order) is None
            if isinstance(instruction, Persist):
                self.saved.update({record.uid: record for record in instruction.records})
                for record in instruction.forget:
                    del self.saved[record.uid]
        assert violations(self.core) == []

    # -- shorthand for stories

    def running(self, uid: str = "w1", identity: Identity = MD, node: str = "n1") -> Told:
        """A workload that started cold and runs."""
        self.report(Starting(workload(uid, node), identity, POLICY))
        return self.tell(SnapshotFound(f"restore.{uid}"), StartedCold(f"restore.{uid}"))

    def preempt(
        self,
        *victims: Victim,
        uid: str = "s1",
        after_commit: AfterCommit = AfterCommit.STOP,
        not_after: float | None = None,
        observed_at: float | None = None,
        release_group: str | None = None,
        reason: str = "InCohortReclamation",
    ) -> Told:
        observed = self.now if observed_at is None else observed_at
        chosen = victims or (victim(),)
        signal = Signal(uid, "kueue", chosen, reason, observed, "ml/urgent", not_after, after_commit, release_group)
        return self.report(Preempted(signal))

    def interval_passed(self, *victims: Victim, uid: str = "p1") -> Told:
        """A periodic snapshot is due."""
        return self.preempt(*victims, uid=uid, after_commit=AfterCommit.LEAVE_RUNNING, reason=INTERVAL)

    def cancel(self, uid: str = "s1") -> Told:
        return self.report(PreemptionCancelled(uid, "the job was withdrawn"))

    def ended(self, uid: str = "w1") -> Told:
        return self.report(Ended(uid, "it finished"))

    def frozen(self, *uids: str) -> Told:
        return self.tell(*map(Frozen, uids or ("s1.w1.1",)))

    def committed(self, uid: str = "s1.w1.1", generation: int = 1, identity: Identity = MD) -> Told:
        return self.tell(Committed(uid, ref(generation, identity), Transfer(read_bytes=3 << 30)))

    def failed(self, uid: str = "s1.w1.1", *, retryable: bool = False) -> Told:
        return self.tell(CheckpointFailed(uid, "the store is down", retryable))

    def killed(self, *uids: str, still_frozen: bool = False) -> Told:
        return self.tell(*(Killed(uid, still_frozen) for uid in uids or ("s1.w1.1",)))

    def hold_is_released(self, *uids: str) -> Told:
        return self.tell(*map(ReleaseDone, uids or ("s1",)))

    def aborted(self, *uids: str) -> Told:
        return self.tell(*map(Aborted, uids or ("s1.w1.1",)))

    # -- questions

    def orders(self) -> list[str]:
        """What was ordered, as `Kind uid`, `Kind` of what."""
        return [f"{type(order).__name__} {record_uid_of(order)}" for order in self.sent()]

    def sent(self) -> list[Order]:
        return [instruction.order for instruction in self.said if isinstance(instruction, Send)]

    def order(self, kind: type[O]) -> O:
        """The one order of this kind."""
        (found,) = [order for order in self.sent() if isinstance(order, kind)]
        return found

    def releases(self) -> list[Release]:
        return [instruction.release for instruction in self.said if isinstance(instruction, ReleaseHold)]

    def verdicts(self) -> dict[str, str]:
        """The one release, as plain words; empty when nothing was released."""
        releases = self.releases()
        return {uid: str(verdict) for uid, verdict in releases[-1].verdicts.items()} if releases else {}

    def released(self) -> list[str]:
        """The uids of the signals that were released."""
        return [release.signal_uid for release in self.releases()]

    def tells(self) -> list[str]:
        return [instruction.kind for instruction in self.said if isinstance(instruction, PublishEvent)]

    def step(self, uid: str) -> str:
        record = self.core.registry.get(uid)
        assert record is not None, f"{uid} is not known, only {[r.uid for r in self.core.records()]}"
        return str(record.step)
