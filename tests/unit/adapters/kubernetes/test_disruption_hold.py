"""What the webhook answers to an eviction that no scheduler requests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cedana_sched.eviction_holds.decision import NOT_HELD, UNHELD
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.builtin_kinds import OUT_OF_SERVICE, Metadata
from cedana_sched.kube.client import Object
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.cached_hold import HoldSpec, HoldStatus, PreemptionHold, VictimStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.kube.resources import NODES, PODS, Resource
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched.model.preemption import Verdict
from cedana_sched.model.records import HoldStep
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.testing import FakeApi
from cedana_sched_kubernetes import disruption_hold
from cedana_sched_kubernetes.disruption_hold import DisruptionHold
from cedana_sched_kubernetes.objects import DISRUPTION_BUDGETS, EVICTION_API, TAINT
from cedana_sched_webhooks.admission import Answer, Request, UserInfo
from cedana_sched_webhooks.schedulers import ReplicaAccess

NOW = datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC)
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": TAINT}


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


class Desk:
    """One replica, over an API server with one protected pod."""

    def __init__(self, **pod: Any) -> None:
        self.api = FakeApi()
        self.time = 0.0
        self.known = PreemptionIndex()
        metadata: Object = {
            "name": "md-0",
            "namespace": "lab",
            "labels": {names.PROTECTED: "true", "app": "md"},
            "annotations": {names.ID: "md", names.INDEX: "0"},
            **pod.get("metadata", {}),
        }
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], **pod.get("status", {})}
        self.api.put(PODS, {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": status})
        self.put_node("NoSchedule", "NoExecute")
        served = ServedNamespaces(frozenset({"kube-system"}))
        replica = ReplicaAccess(self.api, self.known, served, now=lambda: NOW + timedelta(seconds=self.time))
        self.marker = EvictionMarker(self.api, replica.now, names.DISRUPTION_REQUESTED)
        self.hold = DisruptionHold(replica, self.marker, clock=lambda: self.time)

    @property
    def pod(self) -> Object:
        found: Object = self.api.stored(PODS, "md-0", "lab")
        return found

    def put_node(self, *effects: str, cordoned: bool = False) -> None:
        taints = [{"key": "gone", "effect": effect} for effect in effects]
        spec = {"taints": taints, "unschedulable": cordoned}
        self.api.put(NODES, {"metadata": {"name": "n1"}, "spec": spec})

    def put_budget(self, allowed: int, selector: Object | None = None, name: str = "md") -> None:
        spec = {"selector": {"matchLabels": {"app": "md"}} if selector is None else selector}
        status = {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "observedGeneration": 1}
        metadata = {"name": name, "namespace": "lab", "generation": 1}
        self.api.put(DISRUPTION_BUDGETS, {"metadata": metadata, "spec": spec, "status": status})

    def put_hold(self, uid: str, *, pod: str | None = None, verdict: Verdict | None = None) -> None:
        """Of a pod, which is held, or released with a verdict."""
        pod = self.pod["metadata"]["uid"] if pod is None else pod
        step = HoldStep.HOLDING if verdict is None else HoldStep.RELEASED
        victims = () if verdict is None else (VictimStatus(pod, verdict),)
        status = HoldStatus(step, at(300), None if verdict is None else at(0), victims)
        spec = HoldSpec(EVICTION_API, uid=uid, creation_time=at(-10))
        metadata = Metadata(name=f"hold-{uid}", namespace="lab", uid=uid)
        self.known.on_hold_change(None, PreemptionHold(metadata, spec, status))
        of = CheckpointSpec(IdentitySpec("md"), PodRef(pod, node_name="n1"), uid)
        self.known.on_checkpoint_change(None, Checkpoint(Metadata(name=uid, namespace="lab"), of))

    async def evict(self, **fields: Any) -> Answer:
        body: Object = {"metadata": {"name": "md-0"}, "deleteOptions": fields.get("options")}
        return await self.hold.answer_eviction(
            Request("1", "lab", "md-0", UserInfo("admin"), body, **fields.get("of", {}))
        )

    async def taint(self) -> Answer:
        now = {**self.pod, "status": {**self.pod["status"], "conditions": [DISRUPTED]}}
        return await self.hold.answer_status(Request("1", "lab", "md-0", UserInfo("taints"), now, self.pod))

    async def mark_of_pod(self) -> Object | None:
        """The mark, once it is written."""
        writing = asyncio.create_task(self.marker.run())
        for _ in range(20):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        found = read_mark(self.pod["metadata"].get("annotations") or {}, names.DISRUPTION_REQUESTED)
        return None if found is None else {"by": found.by, "cause": found.cause, "budget": found.budget}


async def test_eviction_of_a_protected_pod_is_refused_in_a_way_that_drains_retry_and_marked() -> None:
    desk = Desk()
    answer = await desk.evict()
    assert answer.refusal is not None
    assert (answer.decision, answer.refusal.code, answer.refusal.retry_after_seconds) == (NOT_HELD, 429, 5)
    assert await desk.mark_of_pod() == {"by": "admin", "cause": EVICTION_API, "budget": ""}


async def test_taint_is_refused_and_marked_as_such() -> None:
    desk = Desk()
    answer = await desk.taint()
    assert answer.refusal is not None
    assert await desk.mark_of_pod() == {"by": "taints", "cause": TAINT, "budget": ""}


async def test_successor_of_the_same_name_on_a_node_without_a_taint_is_not_evicted() -> None:
    desk = Desk()
    desk.put_node("NoSchedule")
    answer = await desk.taint()
    assert answer.refusal is not None
    assert (answer.decision, answer.refusal.code) == ("successor", 403)
    assert await desk.mark_of_pod() is None


async def test_nothing_is_held_on_a_node_that_is_out_of_service() -> None:
    desk = Desk()
    desk.api.put(
        NODES, {"metadata": {"name": "n1"}, "spec": {"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]}}
    )
    assert await desk.taint() == Answer("out-of-service")
    assert await desk.mark_of_pod() is None


async def test_taint_is_held_where_the_node_cannot_be_read() -> None:
    desk = Desk()
    desk.api.traffic.down = True
    answer = await desk.taint()
    assert answer.refusal is not None
    assert answer.refusal.code == 429


async def test_taint_of_a_pod_that_is_evicted_already_is_not_refused() -> None:
    assert (await Desk(status={"conditions": [DISRUPTED]}).taint()).refusal is None


@pytest.mark.parametrize(
    "pod",
    [
        {"metadata": {"labels": {"app": "md"}}},
        {"metadata": {"labels": {names.PROTECTED: "false"}}},
        {"metadata": {"deletionTimestamp": "2026-05-01T12:00:00Z"}},
        {"status": {"phase": "Pending"}},
        {"status": {"phase": "Succeeded"}},
    ],
    ids=["not opted in", "refused protection", "being deleted", "pending", "ended"],
)
async def test_other_pods_are_evicted_as_without_us(pod: Object) -> None:
    desk = Desk(**pod)
    assert (await desk.evict()).refusal is None
    assert (await desk.taint()).refusal is None
    assert await desk.mark_of_pod() is None


async def test_pod_that_does_not_exist_is_the_api_servers() -> None:
    desk = Desk()
    desk.api.remove(PODS, "md-0", "lab")
    assert (await desk.evict()).refusal is None


@pytest.mark.parametrize("request_fields", [{"of": {"dry_run": True}}, {"options": {"dryRun": ["All"]}}])
async def test_dry_run_is_refused_and_leaves_no_mark(request_fields: Object) -> None:
    desk = Desk()
    assert (await desk.evict(**request_fields)).refusal is not None
    assert await desk.mark_of_pod() is None


async def test_eviction_that_its_budget_forbids_is_left_to_the_api_server() -> None:
    desk = Desk()
    desk.put_budget(0)
    assert await desk.evict() == Answer("budget")
    assert await desk.mark_of_pod() is None


async def test_pod_of_two_budgets_is_left_to_the_api_server_which_refuses_it() -> None:
    desk = Desk()
    desk.put_budget(1)
    desk.put_budget(1, name="another")
    assert await desk.evict() == Answer("budget")


async def test_mark_names_the_budget_that_counts_the_pod() -> None:
    desk = Desk()
    desk.put_budget(1)
    desk.put_budget(0, {"matchLabels": {"app": "ml"}}, name="another")
    assert (await desk.evict()).refusal is not None
    assert await desk.mark_of_pod() == {"by": "admin", "cause": EVICTION_API, "budget": "md"}


async def test_eviction_is_allowed_once_it_is_released() -> None:
    desk = Desk()
    desk.put_hold("signal")
    assert (await desk.evict()).decision == "held"
    desk.known.on_hold_change(
        None, PreemptionHold(Metadata(name="hold-signal", namespace="lab"), HoldSpec(uid="signal"))
    )
    desk = Desk()
    desk.put_hold("signal", verdict=Verdict.COMMITTED)
    assert await desk.evict() == Answer("released")


async def test_eviction_that_nobody_takes_up_is_allowed_after_a_while() -> None:
    desk = Desk()
    for desk.time in range(0, 30, 5):
        assert (await desk.evict()).decision == NOT_HELD
    desk.time = 31
    assert await desk.evict() == Answer(UNHELD)


async def test_eviction_waits_longer_while_others_of_its_budget_may_be_saved_but_not_for_ever() -> None:
    desk = Desk()
    desk.put_budget(1)
    desk.put_hold("another", pod="pod-2")
    for desk.time in range(0, 330, 5):
        answer = await desk.evict()
        assert answer.decision == NOT_HELD, desk.time
    assert answer.refusal is not None
    assert answer.refusal.message == "Waits: of the pods of PodDisruptionBudget md, cedana saves others first"
    desk.time = 331
    assert await desk.evict() == Answer(UNHELD), "the other hold is over, and nobody took this pod up since"


async def test_eviction_does_not_wait_for_pods_of_other_namespaces() -> None:
    """No budget counts them, and their tenants would delay a drain."""
    desk = Desk()
    desk.put_budget(1)
    theirs = HoldSpec(EVICTION_API, uid="theirs", creation_time=at(-10))
    desk.known.on_hold_change(
        None, PreemptionHold(Metadata(name="hold-theirs", namespace="bio"), theirs, HoldStatus(deadline=at(300)))
    )
    for desk.time in range(0, 30, 5):
        assert (await desk.evict()).decision == NOT_HELD
    desk.time = 31
    assert await desk.evict() == Answer(UNHELD)


async def test_eviction_that_waited_for_others_is_not_allowed_before_it_can_be_taken_up() -> None:
    desk = Desk()
    desk.put_budget(1)
    desk.put_hold("another", pod="pod-2")
    for desk.time in range(0, 100, 5):
        await desk.evict()
    hold = PreemptionHold(
        Metadata(name="hold-another", namespace="lab", uid="another"),
        HoldSpec(TAINT, uid="another", creation_time=at(-10)),
        HoldStatus(HoldStep.RELEASED, at(300), at(100), (VictimStatus("pod-2", Verdict.COMMITTED),)),
    )
    desk.known.on_hold_change(None, hold)
    for desk.time in range(100, 135, 5):
        assert (await desk.evict()).decision == NOT_HELD, desk.time
    desk.time = 136
    assert await desk.evict() == Answer(UNHELD)


async def test_eviction_is_allowed_where_the_api_server_does_not_answer_us() -> None:
    desk = Desk()
    desk.api.traffic.down = True
    assert await desk.evict() == Answer("unknown")


async def test_nothing_is_held_in_an_excluded_namespace() -> None:
    desk = Desk()
    body = {"metadata": {"name": "md-0"}}
    answer = await desk.hold.answer_eviction(Request("1", "kube-system", "md-0", UserInfo("admin"), body))
    assert answer == Answer("not-ours")


@pytest.mark.parametrize(
    ("cordoned", "verdict", "age", "by_uid", "is_gone"),
    [
        (False, Verdict.COMMITTED, 10, False, True),
        (False, Verdict.COMMITTED, 61, False, False),
        (True, Verdict.COMMITTED, 10, False, False),
        (False, None, 10, False, False),
        (False, Verdict.COMMITTED, 10, True, False),
    ],
    ids=["its successor", "long after", "its node is drained, too", "not evicted yet", "called by uid"],
)
async def test_retry_that_meets_the_successor_is_told_that_its_pod_is_gone(
    cordoned: bool, verdict: Verdict | None, age: float, by_uid: bool, is_gone: bool
) -> None:
    desk = Desk()
    desk.put_node("NoSchedule", cordoned=cordoned)
    desk.put_hold("signal", pod="predecessor", verdict=verdict)
    desk.time = age
    answer = await desk.evict(options={"preconditions": {"uid": desk.pod["metadata"]["uid"]}} if by_uid else None)
    assert answer.refusal is not None
    assert answer.refusal.code == (404 if is_gone else 429)
    assert (await desk.mark_of_pod() is None) is is_gone


@pytest.mark.parametrize("precondition", [{"uid": "predecessor"}, {"resourceVersion": "0"}])
async def test_eviction_of_another_pod_of_that_name_is_left_to_the_api_server(precondition: Object) -> None:
    """Karpenter retries by the uid of the pod that is evicted already: its successor must not be saved and evicted."""
    desk = Desk()
    desk.put_hold("signal", pod="predecessor", verdict=Verdict.COMMITTED)
    assert await desk.evict(options={"preconditions": precondition}) == Answer("not-ours")
    assert await desk.mark_of_pod() is None


async def test_retry_that_meets_a_successor_that_does_not_run_yet_does_not_evict_it() -> None:
    desk = Desk(status={"phase": "Pending"})
    desk.put_node()
    desk.put_hold("signal", pod="predecessor", verdict=Verdict.COMMITTED)
    answer = await desk.evict()
    assert answer.refusal is not None
    assert answer.refusal.code == 404


@pytest.mark.parametrize("index", ["9" * 5_000, "-1", "\u0660", "", "1.5"])
async def test_index_that_is_no_number_of_a_replica_keeps_no_eviction_from_being_held(index: str) -> None:
    desk = Desk(metadata={"annotations": {names.ID: "md", names.INDEX: index}})
    desk.put_hold("signal", pod="predecessor", verdict=Verdict.COMMITTED)
    assert (await desk.evict()).decision == NOT_HELD


async def test_budget_that_is_too_large_to_be_read_is_left_to_the_api_server_at_the_eviction() -> None:
    desk = Desk()
    values = ["x" * 60] * 1_000
    desk.put_budget(0, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["md", *values]}]})
    assert (await desk.evict()).decision == NOT_HELD
    assert await desk.mark_of_pod() == {"by": "admin", "cause": EVICTION_API, "budget": ""}


async def test_evictions_of_one_namespace_delay_those_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant may write many budgets, and call `pods/eviction` as often as they like."""
    desk, read_all = Desk(), asyncio.Event()
    desk.api.put(PODS, {**desk.pod, "metadata": {**desk.pod["metadata"], "namespace": "other", "uid": "of-other"}})
    list_each = desk.api.list_each

    async def list_slowly(resource: Resource, namespace: str | None, *rest: Any) -> str:
        if namespace == "lab":
            await read_all.wait()
        return await list_each(resource, namespace, *rest)

    monkeypatch.setattr(desk.api, "list_each", list_slowly)
    flood = [asyncio.create_task(desk.evict()) for _ in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        answer = await desk.hold.answer_eviction(
            Request("1", "other", "md-0", UserInfo("admin"), {"metadata": {"name": "md-0"}})
        )
    assert answer.decision == NOT_HELD
    read_all.set()
    assert {one.decision for one in await asyncio.gather(*flood)} == {NOT_HELD}


async def test_budgets_that_are_not_read_in_time_leave_the_eviction_to_the_api_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()

    async def list_for_ever(*_: Any) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(desk.api, "list_each", list_for_ever)
    monkeypatch.setattr(disruption_hold, "READ_SECONDS", 0.01)
    assert await desk.evict() == Answer("unknown")
