"""How a protected pod stands, by what the cluster's objects say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec, CheckpointStatus
from cedana_sched.kube.own_kinds.cached_hold import HoldSpec, HoldStatus, PreemptionHold, VictimStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef, SnapshotName
from cedana_sched.kube.resources import PODS
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark, serialized_mark
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import CheckpointStep, HoldStep, Phase
from cedana_sched_volcano.extender import cached_pod_states as holdings
from cedana_sched_volcano.extender.cached_pod_states import CachedPodStates
from cedana_sched_volcano.extender.pod_states_interface import EvictionRequester, ProtectedPodState
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup, PodGroupSpec

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ML = EvictionRequester("reclaim", "lab/ml", "ml-uid")


class World:
    """One extender whose mirrors hold what tests say; pods began 100 s ago, and are found by their names."""

    def __init__(self) -> None:
        self.now = NOON
        self.patches: list[dict[str, Any]] = []
        self.holding = CachedPodStates(cast("Any", self), lambda: self.now, clock=self._seconds)
        self._version = 0

    def _seconds(self) -> float:
        return self.now.timestamp()

    def at(self, seconds: float) -> str:
        return (NOON + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")

    def put(self, name: str = "md-0", **fields: Any) -> None:
        self._version += 1
        annotations = {names.ID: name, **fields.get("annotations", {})}
        if (group := fields.get("group")) is not None:
            annotations[GROUP_NAME] = group
        metadata: dict[str, Any] = {
            "name": name, "namespace": "lab", "uid": name, "annotations": annotations,
            "resourceVersion": str(self._version), **({"deletionTimestamp": self.at(0)} if "deleted" in fields else {}),
        }  # fmt: skip
        status: dict[str, Any] = {
            "phase": fields.get("phase", "Running"),
            "startTime": self.at(fields.get("began", -100)),
        }
        if "evicted" in fields:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            status["conditions"] = [condition]
        self.holding._pods._put(msgspec.convert({"metadata": metadata, "status": status}, Pod))

    def mark(self, *, since: float, last: float) -> dict[str, str]:
        return {names.EVICTION_REQUESTED: serialized_mark(EvictionMark("volcano", self.at(since), self.at(last)))}

    def saved(self, name: str, committed: float, *, generation: int = 1, phase: Phase = Phase.READY) -> None:
        step = CheckpointStep.READY if phase is Phase.READY else CheckpointStep.FAILED
        status = CheckpointStatus(phase, step, SnapshotName(generation, name), self.at(committed))
        self._checkpoint(name, f"{name}-{generation}", "", status)

    def held(
        self,
        name: str,
        step: HoldStep = HoldStep.HOLDING,
        verdict: Verdict | None = None,
        *,
        left: float = 60.0,
        released: float = 0.0,
    ) -> None:
        victims = () if verdict is None else (VictimStatus(name, verdict),)
        released_at = None if step is HoldStep.HOLDING else self.at(released)
        spec, status = (
            HoldSpec("x", uid="signal", creation_time=self.at(-1)),
            HoldStatus(step, self.at(left), released_at, victims),
        )
        self.holding._holds._put(PreemptionHold(Metadata(name="hold", namespace="lab"), spec, status))
        self._checkpoint(name, "in-flight", "signal", CheckpointStatus())

    def _checkpoint(self, pod: str, name: str, hold: str, status: CheckpointStatus) -> None:
        spec = CheckpointSpec(IdentitySpec(pod), PodRef(pod, node_name="n"), hold)
        self.holding._checkpoints._put(Checkpoint(Metadata(name=name, namespace="lab"), spec, status))

    def gang(self, name: str, least: int) -> None:
        group = PodGroup(Metadata(name=name, namespace="lab", uid=name), PodGroupSpec(least))
        self.holding._groups._put(group)

    def standing(self, name: str = "md-0") -> ProtectedPodState:
        found = self.holding.state_of(name)
        assert found is not None
        return found

    def unsaved(self, name: str = "md-0") -> float:
        return self.standing(name).unsaved_seconds

    async def patch(self, resource: object, name: str, namespace: str, patch: dict[str, Any]) -> None:
        assert resource is PODS
        self.patches.append(patch)


def test_who_is_not_protected_or_not_there_has_no_standing() -> None:
    assert World().holding.state_of("md-0") is None


def test_who_is_wanted_for_the_first_time_waits_for_the_coordinator() -> None:
    world = World()
    world.put()
    assert world.standing() == ProtectedPodState(may_go=False, unsaved_seconds=100.0)
    world.put(annotations=world.mark(since=-20, last=-1))
    assert world.standing() == ProtectedPodState(may_go=False, saving=True, unsaved_seconds=100.0)
    world.put(annotations=world.mark(since=-31, last=-1))
    assert world.standing().may_go, "nobody took it up"


@pytest.mark.parametrize(
    ("step", "verdict", "left", "may_go", "stays"),
    [
        (HoldStep.HOLDING, None, 60.0, False, False),
        (HoldStep.HOLDING, None, -1.0, True, False),
        (HoldStep.RELEASED, Verdict.COMMITTED, 60.0, True, False),
        (HoldStep.RELEASED, Verdict.EVICT, 60.0, True, False),
        (HoldStep.RELEASED, Verdict.KEEP_RUNNING, 60.0, False, True),
    ],
)
def test_holds_decide(step: HoldStep, verdict: Verdict | None, left: float, may_go: bool, stays: bool) -> None:
    world = World()
    world.put(annotations=world.mark(since=-5, last=-1))
    world.held("md-0", step, verdict, left=left)
    found = world.standing()
    assert (found.may_go, found.stays, found.saving) == (may_go, stays, not stays)


@pytest.mark.parametrize("fields", [{"phase": "Pending"}, {"deleted": True}, {"evicted": True}])
def test_who_does_not_run_or_goes_already_is_not_held(fields: dict[str, Any]) -> None:
    world = World()
    world.put(**fields)
    assert world.standing() == ProtectedPodState(may_go=True)


def test_what_is_at_stake_is_what_no_snapshot_has() -> None:
    world = World()
    world.put()
    world.saved("md-0", -500)
    assert world.unsaved() == 100, "it has continued from that one"
    world.saved("md-0", -40, generation=2)
    world.saved("md-0", -5, generation=3, phase=Phase.FAILED)
    assert world.unsaved() == 40
    world.saved("other", -1)
    assert world.unsaved() == 40


def test_a_gang_that_would_break_has_the_work_of_all_its_members_at_stake() -> None:
    world = World()
    world.gang("ml", 2)
    world.put("ml-0", group="ml", began=-50)
    world.put("ml-1", group="ml", began=-70)
    assert world.unsaved("ml-0") == world.unsaved("ml-1") == 120
    world.put("ml-2", group="ml", began=-10)
    world.now += timedelta(seconds=2 * holdings.GANGS_LAST_SECONDS)
    assert (world.unsaved("ml-0"), world.unsaved("ml-2")) == (52, 12), "it can spare one now"


def test_of_a_large_gang_all_members_are_summed_once() -> None:
    world, looked = World(), 0
    world.gang("ml", 300)
    for number in range(300):
        world.put(f"ml-{number}", group="ml")
    holding, unsaved = world.holding, world.holding._unsaved_seconds

    def counted(pod: Pod, now: datetime) -> float:
        nonlocal looked
        looked += 1
        return unsaved(pod, now)

    holding._unsaved_seconds = counted  # type: ignore[method-assign]
    assert {world.unsaved(f"ml-{number}") for number in range(300)} == {30_000.0}
    assert looked == 300


async def test_who_is_asked_for_is_marked_and_says_for_whom() -> None:
    world = World()
    world.put()
    world.holding.record_eviction_request("md-0", ML)
    world.holding.record_eviction_request("md-0", ML)
    world.holding.record_eviction_request("unknown", ML)
    marker = world.holding._marker
    assert marker._waiting.qsize() == 1
    await marker._write(*marker._waiting.get_nowait())
    (patch,) = world.patches
    assert patch["metadata"]["resourceVersion"] == "1", "of several replicas, one marks"
    mark = read_mark(patch["metadata"]["annotations"])
    assert mark is not None
    assert mark.by == "volcano extender, reclaim for lab/ml"


def test_nobody_waits_for_ever_for_a_mark_that_cannot_be_written() -> None:
    world = World()
    world.put()
    for _ in range(30):
        assert not world.standing().may_go
        world.holding.record_eviction_request("md-0", ML)
        world.now += timedelta(seconds=1)
    assert world.standing().may_go
    world.now += timedelta(seconds=7)
    assert not world.standing().may_go, "it is another wish"


def test_a_hold_that_was_taken_back_counts_for_nobody_waiting() -> None:
    world = World()
    world.put()
    for _ in range(100):
        world.holding.record_eviction_request("md-0", ML)
        world.now += timedelta(seconds=1)
    world.held("md-0", left=600.0)
    assert not world.standing().may_go
    world.held("md-0", HoldStep.RELEASED, Verdict.NOT_NEEDED, left=600.0, released=100.0)
    assert not world.standing().may_go


def test_nothing_is_known_before_everything_is_listed() -> None:
    world = World()
    informers = world.holding._informers()
    for informer in informers:
        assert not world.holding.is_synced
        informer.synced.set()
    assert world.holding.is_synced
