"""The hold of a scheduler's eviction, written into a pod's status, rule by rule."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.cached_hold import HoldSpec, HoldStatus, PreemptionHold, VictimStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark, refreshed_mark, serialized_mark
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep
from cedana_sched_webhooks.admission import Answer, Request, UserInfo
from cedana_sched_webhooks.holds.pod_eviction_hold import PodEvictionHold
from tests.unit.webhooks.admission_builders import configuration, knowledge

NOW = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)
SCHEDULER = "system:serviceaccount:volcano-system:volcano-scheduler"
POD_UID = "pod-uid"


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def mark(*, since: float = 0, last: float = 0) -> dict[str, str]:
    return {names.EVICTION_REQUESTED: serialized_mark(EvictionMark(SCHEDULER, at(since), at(last)))}


def eviction(*, user: str = SCHEDULER, **fields: Any) -> Request:
    """The write of the condition; `fields` are the pod's: annotations, labels, phase, disrupted, deleted."""
    metadata = {
        "name": "md-0",
        "namespace": fields.get("namespace", "lab"),
        "uid": POD_UID,
        "resourceVersion": "7",
        "labels": fields.get("labels", {names.PROTECTED: "true"}),
        "annotations": fields.get("annotations", {}),
        **({"deletionTimestamp": "2026-05-01T12:00:00Z"} if fields.get("deleted") else {}),
    }
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    phase = fields.get("phase", "Running")
    before = {"phase": phase, "conditions": [condition] if fields.get("disrupted") else []}
    return Request(
        uid="1",
        namespace=metadata["namespace"],
        name="md-0",
        user_info=UserInfo(user),
        object={"metadata": metadata, "status": {"phase": phase, "conditions": [condition]}},
        old_object={"metadata": metadata, "status": before},
        dry_run=fields.get("dry_run"),
    )


def hold(
    step: HoldStep = HoldStep.HOLDING,
    verdict: Verdict | None = None,
    *,
    left: float = 60,
    released: float | None = None,
    uid: str = "signal-1",
    created: float = -10,
) -> PreemptionHold:
    victims = () if verdict is None else (VictimStatus(POD_UID, verdict),)
    status = HoldStatus(step, at(left), None if released is None else at(released), victims)
    spec = HoldSpec("PreemptionByScheduler", uid=uid, creation_time=at(created))
    return PreemptionHold(Metadata(name=f"hold-{uid}", namespace="lab", uid=uid), spec, status)


class Desk:
    """A replica that knows these holds of the pod, and writes no marks but remembers whom it was to."""

    def __init__(self, *holds: PreemptionHold) -> None:
        self.known = known = knowledge(holds=holds)
        for one in holds:
            spec = CheckpointSpec(IdentitySpec("md"), PodRef(POD_UID, node_name="node1"), one.spec.uid)
            known.on_checkpoint_change(None, Checkpoint(Metadata(name=one.spec.uid, namespace="lab"), spec))
        told = configuration(scheduler_users=frozenset({SCHEDULER}), excluded_namespaces=frozenset({"monitoring"}))
        self.marked: list[str] = []
        self.seconds = 1000.0
        self.now = NOW
        self._hold = PodEvictionHold(known, told, self, now=lambda: self.now, clock=lambda: self.seconds)

    def wait(self, seconds: float) -> None:
        self.seconds += seconds
        self.now += timedelta(seconds=seconds)

    def enqueue_mark(self, pod: Metadata, by: str) -> None:
        self.marked.append(f"{pod.uid} by {by}")

    def ask(self, request: Request) -> Answer:
        return self._hold.answer(request)


def refused(answer: Answer, *, again: bool = True) -> str:
    """Whether the client itself is to repeat it: not what would then seem to be asked for persistently."""
    assert answer.refusal is not None, answer
    assert (answer.refusal.code, answer.refusal.retry_after_seconds) == (429, 1 if again else None)
    return answer.refusal.message


def test_the_first_attempt_is_refused_and_marked() -> None:
    desk = Desk()
    assert refused(desk.ask(eviction())).endswith(
        "the coordinator has not taken the eviction up yet, at most 30 s more"
    )
    assert desk.marked == [f"{POD_UID} by {SCHEDULER}"]


def test_a_hold_before_its_deadline_refuses_and_the_wish_stays_fresh() -> None:
    desk = Desk(hold())
    assert refused(desk.ask(eviction(annotations=mark(since=-200)))).endswith(
        "PreemptionByScheduler, at most 60 s more"
    )
    assert desk.ask(eviction()).decision == "held"
    assert desk.marked


def test_a_dry_run_is_refused_and_marks_nothing() -> None:
    desk = Desk()
    refused(desk.ask(eviction(dry_run=True)))
    assert desk.marked == []


def test_a_hold_past_its_deadline_allows() -> None:
    assert Desk(hold(left=0)).ask(eviction(annotations=mark(since=-5))) == Answer("past-deadline")


@pytest.mark.parametrize("verdict", [Verdict.COMMITTED, Verdict.EVICT])
@pytest.mark.parametrize(("step", "released"), [(HoldStep.RELEASING, None), (HoldStep.RELEASED, -3)])
def test_who_is_released_goes(verdict: Verdict, step: HoldStep, released: float | None) -> None:
    assert Desk(hold(step, verdict, released=released)).ask(eviction(annotations=mark(since=-9))) == Answer("released")


def test_a_release_of_long_ago_is_for_another_eviction() -> None:
    desk = Desk(hold(HoldStep.RELEASED, Verdict.COMMITTED, released=-61))
    refused(desk.ask(eviction()))
    assert desk.marked


def test_who_was_spared_is_held_anew() -> None:
    desk = Desk(hold(HoldStep.RELEASED, Verdict.NOT_NEEDED, released=-3))
    refused(desk.ask(eviction()), again=False)


def test_the_attempt_that_was_refused_before_its_pod_was_marked_is_let_through_as_it_is() -> None:
    desk = Desk(hold(HoldStep.RELEASED, Verdict.COMMITTED, released=-1))
    request = eviction()
    assert request.old_object is not None
    marked = {**request.old_object["metadata"], "resourceVersion": "8", "annotations": mark()}
    answer = desk.ask(msgspec.structs.replace(request, old_object={**request.old_object, "metadata": marked}))
    assert answer.refusal is None
    assert {"op": "replace", "path": "/metadata/resourceVersion", "value": "8"} in answer.patch


def test_who_could_not_be_saved_and_is_to_run_on_stays() -> None:
    desk = Desk(hold(HoldStep.RELEASED, Verdict.KEEP_RUNNING, released=-3))
    answer = desk.ask(eviction())
    assert refused(answer).startswith("Kept running by cedana")
    assert answer.decision == "kept"


def test_who_was_kept_running_is_held_anew_when_it_is_asked_for_all_the_while() -> None:
    desk = Desk(hold(HoldStep.RELEASED, Verdict.KEEP_RUNNING, released=-3))
    for _ in range(56):
        refused(desk.ask(eviction(annotations=mark(since=-20, last=-2))))
        desk.wait(1)
    assert desk.marked == [], "a wish that lasts so long would be let through when it counts again"
    desk.wait(2)
    assert desk.ask(eviction(annotations=mark(since=-20, last=-2))).decision == "not-yet-held"
    assert desk.marked


@pytest.mark.parametrize(("times", "seconds"), [(1, 60), (2, 120), (4, 480), (5, 960), (30, 960)])
def test_who_is_kept_running_again_and_again_is_frozen_less_and_less_often(times: int, seconds: int) -> None:
    """A scheduler that comes back to its choice would have it frozen every minute, for ever."""
    earlier = (
        hold(HoldStep.RELEASED, Verdict.KEEP_RUNNING, released=-1000 - n, uid=f"signal-{n + 2}", created=-1010 - n)
        for n in range(times - 1)
    )
    desk = Desk(hold(HoldStep.RELEASED, Verdict.KEEP_RUNNING, released=0), *earlier)
    desk.wait(seconds - 1)
    assert refused(desk.ask(eviction())).endswith("it is saved anew in 1 s at the earliest")
    desk.wait(1)
    assert desk.ask(eviction()).decision == "not-yet-held"


def test_nobody_waits_for_ever_for_a_mark_that_cannot_be_written() -> None:
    desk = Desk()
    for _ in range(30):
        refused(desk.ask(eviction()))
        desk.wait(1)
    assert desk.ask(eviction()) == Answer("nobody-holds")
    desk.wait(7)
    refused(desk.ask(eviction()))


def test_of_several_holds_the_newest_counts() -> None:
    over = hold(HoldStep.RELEASED, Verdict.COMMITTED, released=-50, uid="signal-0", created=-90)
    assert refused(Desk(over, hold()).ask(eviction()))


def test_a_hold_that_is_over_hides_none_though_it_was_dated_ahead() -> None:
    over = hold(HoldStep.RELEASED, Verdict.COMMITTED, released=-2, uid="signal-0", created=1800, left=2400)
    assert refused(Desk(over, hold()).ask(eviction()))


@pytest.mark.parametrize(("since", "held"), [(-29, True), (-31, False)])
def test_nobody_waits_for_ever_for_a_coordinator(since: float, held: bool) -> None:
    answer = Desk().ask(eviction(annotations=mark(since=since, last=-1)))
    assert (answer.refusal is not None) is held
    assert answer.decision == ("not-yet-held" if held else "nobody-holds")


def test_a_wish_that_was_given_up_begins_anew() -> None:
    assert refused(Desk().ask(eviction(annotations=mark(since=-100, last=-30)))).endswith("at most 30 s more")


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "system:node:node1"},
        {"user": "system:serviceaccount:kube-system:node-controller"},
        {"labels": {}},
        {"namespace": "monitoring"},
        {"namespace": "kube-system"},
        {"phase": "Pending"},
        {"disrupted": True},
        {"deleted": True},
    ],
    ids=lambda fields: next(iter(fields.items()))[0],
)
def test_what_is_none_of_our_business_goes(fields: dict[str, Any]) -> None:
    desk = Desk(hold())
    assert desk.ask(eviction(**fields)) == Answer("not-ours")
    assert desk.marked == []


def of_others(step: HoldStep = HoldStep.HOLDING, **fields: Any) -> Desk:
    """A hold of another pod."""
    desk = Desk()
    desk.known.on_hold_change(None, hold(step, uid="of-others", **fields))
    return desk


@pytest.mark.parametrize("fields", [{}, {"step": HoldStep.RELEASED, "released": -2}], ids=["held", "just released"])
def test_another_victim_in_place_of_those_that_are_being_saved_is_not_believed_at_once(fields: dict[str, Any]) -> None:
    desk = of_others(**fields)
    for waited in (0, 1, 1.9):
        desk.seconds = 1000.0 + waited
        refused(desk.ask(eviction()), again=False)
    assert desk.marked == []
    desk.seconds += 1.2
    refused(desk.ask(eviction()))
    assert desk.marked, "it is persistent"


def test_a_dry_run_makes_nobody_persistent() -> None:
    desk = of_others(left=600)
    for _ in range(10):
        refused(desk.ask(eviction(dry_run=True)), again=False)
        desk.wait(2)
    refused(desk.ask(eviction()), again=False)
    assert desk.marked == []


def test_a_wish_with_a_gap_is_another_one() -> None:
    desk = of_others()
    for waited in (0, 2.6, 5.2):
        desk.seconds = 1000.0 + waited
        refused(desk.ask(eviction()), again=False)
    assert desk.marked == []


def test_a_slow_scheduler_is_believed_after_a_while() -> None:
    desk = of_others(left=600)
    for _ in range(8):
        refused(desk.ask(eviction()), again=False)
        desk.wait(4)
    assert desk.marked == []
    refused(desk.ask(eviction()))
    assert desk.marked


def test_what_a_replica_only_looks_up_does_not_disturb_what_it_remembers() -> None:
    seconds = [0.0]
    requests = FirstRequests(lambda: seconds[0], longest_gap_seconds=5.0)
    requests.seconds_since_first("a")
    seconds[0] = 10.0
    assert [requests.seconds_since_first("a", remember=False) for _ in range(2)] == [0.0, 0.0]
    assert len(requests) == len(requests._last) == 0
    requests.seconds_since_first("a")
    seconds[0] = 12.0
    assert requests.seconds_since_first("a") == 2.0


@pytest.mark.parametrize(
    "fields",
    [{"created": -0.5}, {"left": -1}, {"step": HoldStep.RELEASED, "released": -6}],
    ids=["of the same cycle", "past its deadline", "over"],
)
def test_victims_of_one_decision_are_believed_at_once(fields: dict[str, Any]) -> None:
    desk = of_others(**fields)
    refused(desk.ask(eviction()))
    assert desk.marked


def test_who_is_marked_stays_so_whoever_else_is_saved() -> None:
    desk = of_others()
    refused(desk.ask(eviction(annotations=mark(since=-5, last=-1))))
    assert desk.marked


def test_a_mark_is_refreshed_while_it_is_asked_for_and_begins_anew_after_a_pause() -> None:
    first = refreshed_mark(None, SCHEDULER, NOW)
    assert first is not None
    assert refreshed_mark(first, SCHEDULER, NOW + timedelta(seconds=2)) is None
    second = refreshed_mark(first, SCHEDULER, NOW + timedelta(seconds=4))
    assert second is not None
    assert (second.since, second.last) == (first.since, at(4))
    third = refreshed_mark(second, SCHEDULER, NOW + timedelta(seconds=17))
    assert third is not None
    assert third.since == third.last == at(17)


@pytest.mark.parametrize("text", ["", "{}", "x", '{"by": "a", "since": "b", "last": "c"}'])
def test_a_mark_that_somebody_else_wrote_is_none(text: str) -> None:
    assert read_mark({names.EVICTION_REQUESTED: text}) is None


@pytest.mark.parametrize(
    "moment",
    [
        "2026-05-01T12:00:00", "2026-05-01T12:00:00+00:00", f"2026-05-01T12:00:00.{'0' * 9_000}+00:00",
        "2026-05-01/12:00:00.000+00:00", "2026-05-01\u000012:00:00.000+00:00", "0001-01-01T00:00:00.000+23:59",
    ],
)  # fmt: skip
def test_times_of_a_mark_stand_as_we_write_them(moment: str) -> None:
    """They become parts of uids, which are names of folders on the nodes."""
    ours = at(0)
    for since, last in ((moment, ours), (ours, moment)):
        assert (
            read_mark({names.EVICTION_REQUESTED: msgspec.json.encode(EvictionMark("a", since, last)).decode()}) is None
        )


def test_a_mark_of_the_future_is_not_fresh() -> None:
    (text,) = mark(since=0, last=60).values()
    found = read_mark({names.EVICTION_REQUESTED: text})
    assert found is not None
    assert not found.is_fresh(NOW)


DAY = 86_400


def _created(one: PreemptionHold, seconds: float, namespace: str = "lab") -> PreemptionHold:
    metadata = msgspec.structs.replace(one.metadata, creation_timestamp=at(seconds), namespace=namespace)
    return msgspec.structs.replace(one, metadata=metadata)


def test_no_hold_lasts_longer_than_any_policy_allows() -> None:
    for_ever = 1000 * 365 * DAY
    assert Desk(_created(hold(left=for_ever), 60 - DAY)).ask(eviction()).decision == "held"
    assert Desk(_created(hold(left=for_ever), -60 - DAY)).ask(eviction()) == Answer("past-deadline")


def test_nobody_is_kept_for_ever_by_a_release_of_the_future() -> None:
    kept = hold(HoldStep.RELEASED, Verdict.KEEP_RUNNING, released=1000 * 365 * DAY)
    assert Desk(kept).ask(eviction()).decision == "not-yet-held"
    releasing = hold(HoldStep.RELEASING, Verdict.KEEP_RUNNING)
    assert Desk(_created(releasing, -10)).ask(eviction()).decision == "kept"
    assert Desk(_created(releasing, -60 - DAY)).ask(eviction()).decision == "not-yet-held"


def test_neither_holds_nor_checkpoints_of_another_namespace_count() -> None:
    assert Desk(_created(hold(), -10, "tenant-b")).ask(eviction()).decision == "not-yet-held"
    desk = Desk(hold())
    assert desk.ask(eviction(namespace="tenant-b")).decision == "not-yet-held", "its Checkpoint is in lab"
