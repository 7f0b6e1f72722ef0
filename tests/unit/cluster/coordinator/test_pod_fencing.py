"""When a pod has ended for certain, so that another one may continue its work."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator import seen_pod_ends
from cedana_sched.cluster.coordinator.pod_fencing import PodFencing
from cedana_sched.cluster.coordinator.seen_pod_ends import POD_GC
from cedana_sched.kube.builtin_kinds import (
    DISRUPTED,
    OUT_OF_SERVICE,
    Condition,
    ContainerStatus,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Taint,
)
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS
from cedana_sched.model.preemption import WorkloadRef
from tests.unit.cluster.coordinator.filled_mirrors import filled, known_checkpoints

NOW = 1_777_636_800.0
UNKNOWN_GRACE = 630.0
"""The default policy's."""
NOON, EARLIER = "2026-05-01T12:00:00Z", "2026-05-01T09:00:00Z"


def node(*, ready: bool = True, taint: str | None = None, since: str = EARLIER) -> Node:
    conditions = (Condition("Ready", "True" if ready else "Unknown", last_transition_time=since),)
    taints = () if taint is None else (Taint(taint),)
    return Node(Metadata("n1", resource_version="1"), NodeSpec(taints), NodeStatus(conditions))


def pod(name: str = "old", *, phase: str = "Running", deleted: bool = False, grace: int | None = None) -> Pod:
    metadata = Metadata(
        name=name,
        namespace="bio",
        uid=f"uid-of-{name}",
        annotations={names.ID: "md", names.INDEX: "0"},
        deletion_timestamp=NOON if deleted else None,
    )
    return Pod(metadata, PodSpec(node_name="n1", termination_grace_period_seconds=grace), PodStatus(phase=phase))


def snapshot(
    generation: int = 1,
    of: str = "old",
    *,
    after: str = "LeaveRunning",
    spared: bool = False,
    step: str = "Ready",
    ended: bool = False,
) -> KnownCheckpoint:
    status: dict[str, Any] = {
        "step": step,
        "snapshot": {"id": "md", "generation": generation},
        "evictionCancelled": spared,
        "workloadEnded": ended,
    }
    spec = {"identity": {"id": "md"}, "podRef": {"nodeName": "n1", "uid": f"uid-of-{of}"}, "afterCommit": after}
    metadata = {
        "name": f"md-{generation}",
        "namespace": "bio",
        "resourceVersion": "1",
        "creationTimestamp": EARLIER,
    }
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KnownCheckpoint)


def restored(
    of: str = "old",
    *,
    step: str = "Running",
    lost: bool = False,
    since: str | None = NOON,
    node: str = "n1",
    created: str | None = None,
    over: str | None = None,
) -> OrderedObject:
    pod_ref = {"nodeName": node, "uid": f"uid-of-{of}", "name": of}
    spec = {"uid": f"restore.{of}", "identity": {"id": "md"}, "podRef": pod_ref}
    status = {"step": step, "startTime": since, "completionTime": over, "lostWithNode": lost}
    metadata = {
        "name": f"restore-{of}",
        "namespace": "bio",
        "creationTimestamp": created or since,
        "resourceVersion": "1",
    }
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, OrderedObject)


OLD = WorkloadRef("uid-of-old", "bio", "old", "n1")
NEW = pod("new", phase="Pending")


class Field:
    """Pods, nodes, Checkpoints and the time, as a coordinator sees them."""

    def __init__(
        self,
        *pods: Pod,
        nodes: tuple[Node, ...] = (),
        checkpoints: tuple[KnownCheckpoint, ...] = (),
        restores: tuple[OrderedObject, ...] = (),
    ) -> None:
        self.now = NOW
        self.pods: Informer[Pod] = filled(*pods)
        self.nodes: Informer[Node] = filled(*nodes)
        self.restores: Informer[OrderedObject] = filled(*restores)
        known = known_checkpoints(*checkpoints)
        self.fencing = PodFencing(self.pods, self.nodes, known, self.restores, lambda: self.now)

    def end(self, of: WorkloadRef = OLD) -> str | None:
        blocker = self.fencing.blocker_of(of)
        return None if blocker is None else blocker.why

    def start(self) -> str | None:
        return self.fencing.predecessor_of(NEW).blocker

    def loss(self) -> str | None:
        return self.fencing.predecessor_of(NEW).loss


def test_a_pod_whose_node_is_gone_has_ended() -> None:
    assert Field().end() is None


def test_a_pod_of_a_node_out_of_service_has_ended() -> None:
    assert Field(nodes=(node(ready=False, taint=OUT_OF_SERVICE),)).end() is None


def test_a_pod_of_a_node_that_is_cut_off_may_run_however_long_ago_it_was_deleted() -> None:
    field = Field(pod(), nodes=(node(ready=False, taint="node.kubernetes.io/unreachable"),))
    field.pods._drop(pod())
    field.now += 86_400
    assert OUT_OF_SERVICE in (field.end() or "")


def test_a_pod_that_was_seen_finished_has_ended_wherever_its_node_is() -> None:
    field = Field(pod(), nodes=(node(ready=False),))
    field.pods._put(pod(phase="Failed"))
    field.pods._drop(pod())
    assert field.end() is None


def test_a_ready_kubelet_has_the_grace_of_the_pod_to_end_it() -> None:
    field = Field(pod(grace=120), nodes=(node(),))
    field.pods._drop(pod())
    field.now += 179
    assert field.end() is not None
    field.now += 1
    assert field.end() is None


def test_the_time_of_a_kubelet_counts_from_when_its_node_is_ready_again() -> None:
    field = Field(pod(grace=10), nodes=(node(ready=False),))
    field.pods._drop(pod())
    field.now += 3600
    field.nodes._put(node(since="2026-05-01T13:00:00Z"))
    assert field.end() is not None
    field.now += 70
    assert field.end() is None


def test_a_pod_that_disappeared_before_the_coordinator_led_has_a_kubelet_s_time_as_well() -> None:
    field = Field(nodes=(node(),))
    assert field.end() is not None
    field.now += UNKNOWN_GRACE + 59
    assert field.end() is not None
    field.now += 1
    assert field.end() is None


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    field = Field(NEW, pod(deleted=True), nodes=(node(),), checkpoints=(snapshot(),))
    assert field.start() == "old is being deleted, and may still run on node n1"
    field.pods._put(pod(deleted=True, phase="Failed"))
    assert field.start() is None


@pytest.mark.parametrize("step", ["Aborting", "Failed"])
def test_a_pod_that_was_thawed_after_the_failure_of_its_gang_is_waited_for(step: str) -> None:
    thawed = snapshot(after="Stop", step=step)
    assert Field(NEW, pod(deleted=True), nodes=(node(),), checkpoints=(thawed,)).start() is not None
    saved = snapshot(after="Stop", step="Committed")
    assert Field(NEW, pod(deleted=True), nodes=(node(),), checkpoints=(saved,)).start() is None


@pytest.mark.parametrize("nodes", [(), (node(ready=False, taint=OUT_OF_SERVICE),)], ids=["node gone", "out of service"])
def test_a_deleted_pod_of_a_fenced_node_is_not(nodes: tuple[Node, ...]) -> None:
    assert Field(NEW, pod(deleted=True), nodes=nodes, checkpoints=(snapshot(),)).start() is None


def test_a_deleted_pod_of_a_node_that_is_cut_off_is_waited_for_with_a_remedy() -> None:
    field = Field(NEW, pod(deleted=True), nodes=(node(ready=False),), checkpoints=(snapshot(),))
    assert "delete the node's object" in (field.start() or "")


def test_a_pod_that_stands_still_since_its_snapshot_is_not_waited_for() -> None:
    stopped = snapshot(2, after="Stop")
    assert Field(NEW, pod(deleted=True), nodes=(node(),), checkpoints=(snapshot(), stopped)).start() is None
    spared = snapshot(2, after="Stop", spared=True)
    assert Field(NEW, pod(deleted=True), nodes=(node(),), checkpoints=(snapshot(), spared)).start() is not None


def test_a_pod_that_ran_on_and_disappeared_is_waited_for() -> None:
    field = Field(NEW, nodes=(node(ready=False),), checkpoints=(snapshot(),))
    assert "saved as md/0@1" in (field.start() or "")
    field.nodes._drop(node())
    assert field.start() is None


def test_only_the_newest_snapshot_says_who_ran_on() -> None:
    newest = snapshot(2, "other", after="Stop")
    assert Field(NEW, nodes=(node(ready=False),), checkpoints=(snapshot(), newest)).start() is None


def test_a_pod_does_not_wait_for_itself() -> None:
    assert Field(NEW, nodes=(node(ready=False),), checkpoints=(snapshot(of="new"),)).start() is None


def test_a_pod_that_ran_on_is_lost_with_its_node() -> None:
    lost = "node n1 was lost with the pod that was saved as md/0@1"
    assert Field(NEW, checkpoints=(snapshot(),)).loss() == lost
    assert Field(NEW, nodes=(node(ready=False, taint=OUT_OF_SERVICE),), checkpoints=(snapshot(),)).loss() == lost


def test_nothing_is_lost_with_a_node_that_is_there_or_a_pod_that_stood_still_or_ended_by_itself() -> None:
    assert Field(NEW, nodes=(node(),), checkpoints=(snapshot(),)).loss() is None
    assert Field(NEW, checkpoints=(snapshot(after="Stop"),)).loss() is None
    assert Field(NEW, pod(phase="Failed"), checkpoints=(snapshot(),)).loss() is None
    assert Field(NEW, checkpoints=(snapshot(ended=True),)).loss() is None, "a coordinator before has seen its end"
    assert Field(NEW).loss() is None


def _loss_after_clean_end(deleted: Pod, ended: Pod, *nodes: Node) -> str | None:
    """The loss that counts once the node of a pod that has ended is removed."""
    field = Field(NEW, deleted, nodes=(node(),), checkpoints=(snapshot(),))
    for one in nodes:
        field.nodes._put(one)
    field.pods._put(ended)
    field.pods._drop(ended)
    field.nodes._drop(node())
    return field.loss()


def test_a_pod_that_was_deleted_and_ended_by_its_kubelet_was_not_lost_with_the_node_that_is_removed_later() -> None:
    for phase in ("Succeeded", "Failed"):
        assert _loss_after_clean_end(pod(deleted=True), pod(deleted=True, phase=phase)) is None


def test_a_deleted_pod_that_no_kubelet_has_ended_was_lost() -> None:
    ended = pod(deleted=True, phase="Failed")
    collected = replace(ended, status=PodStatus("Failed", conditions=(Condition(DISRUPTED, "True", reason=POD_GC),)))
    assert _loss_after_clean_end(pod(deleted=True), collected) is not None
    off = node(ready=False, taint=OUT_OF_SERVICE)
    assert _loss_after_clean_end(pod(deleted=True), ended, off) is not None, "PodGC writes no condition for these"


def _finished(phase: str, *states: str) -> Pod:
    containers = tuple(ContainerStatus(state, {state: {}}) for state in states)
    return replace(pod(deleted=True), status=PodStatus(phase, container_statuses=containers))


def test_a_new_coordinator_sees_by_the_pod_that_its_kubelet_has_ended_it_before_the_node_was_removed() -> None:
    for ended in (_finished("Succeeded"), _finished("Failed", "terminated", "terminated")):
        assert Field(NEW, ended, checkpoints=(snapshot(),)).loss() is None, ended
    for collected in (
        _finished("Failed"),
        _finished("Failed", "running"),
        _finished("Failed", "terminated", "running"),
    ):
        assert Field(NEW, collected, checkpoints=(snapshot(),)).loss() is not None, collected


SAVED_BEFORE = snapshot(of="first", after="Stop")
"""The snapshot from which `old` was restored."""


def test_a_restored_pod_without_a_snapshot_of_its_own_is_lost_with_its_node() -> None:
    lost = restored(step="Ended", lost=True)
    assert Field(NEW, checkpoints=(SAVED_BEFORE,), restores=(lost,)).loss() == "node n1 was lost with old"
    assert Field(NEW, checkpoints=(SAVED_BEFORE,), restores=(restored(step="Ended"),)).loss() is None


def test_a_node_that_is_lost_after_the_pod_of_the_newest_snapshot_had_a_successor_is_not_meant() -> None:
    field = Field(NEW, checkpoints=(snapshot(of="first"),), restores=(restored(step="Ended", node="n2"),))
    assert field.loss() is None
    assert field.start() is None


def test_a_pod_that_was_lost_while_it_was_restored_ran_after_the_snapshot_for_which_it_had_waited() -> None:
    saved = snapshot(of="first", after="Stop")
    lost = restored(step="Ended", lost=True, since=None, created="2026-05-01T08:00:00Z", over=NOON)
    assert Field(NEW, checkpoints=(saved,), restores=(lost,)).loss() == "node n1 was lost with old"
    first = restored("first", step="Ended", since="2026-05-01T08:30:00Z")
    assert Field(NEW, checkpoints=(saved,), restores=(first, lost)).loss() == "node n1 was lost with old"
    before = restored(step="Ended", lost=True, since=None, created="2026-05-01T08:00:00Z", over="2026-05-01T08:30:00Z")
    assert Field(NEW, checkpoints=(saved,), restores=(before,)).loss() is None


def test_a_later_pod_that_was_never_restored_decides() -> None:
    earlier = restored(step="Ended", lost=True, since="2026-05-01T08:00:00Z")
    assert Field(NEW, checkpoints=(snapshot(2, "later", after="Stop"),), restores=(earlier,)).loss() is None


def test_a_restored_pod_that_was_saved_and_stopped_has_lost_nothing() -> None:
    field = Field(NEW, checkpoints=(snapshot(2, after="Stop"),), restores=(restored(step="Ended", lost=True),))
    assert field.loss() is None


@pytest.mark.parametrize("step", ["Committed", "Killing"])
@pytest.mark.parametrize("restores", [(), (restored(step="Ended", lost=True),)], ids=["started", "restored"])
def test_nothing_is_lost_while_a_saved_pod_waits_for_its_gang(step: str, restores: tuple[OrderedObject, ...]) -> None:
    saving = snapshot(2, after="Stop", step=step)
    field = Field(NEW, checkpoints=(snapshot(), saving), restores=restores)
    assert (field.start(), field.loss()) == ("the checkpoint of the earlier pod is being completed", None)
    saved = Field(NEW, checkpoints=(snapshot(), snapshot(2, after="Stop")), restores=restores)
    assert (saved.start(), saved.loss()) == (None, None)
    failed = Field(NEW, checkpoints=(snapshot(), snapshot(2, after="Stop", step="Failed")), restores=restores)
    assert failed.start() is None
    assert failed.loss() is not None


def test_a_node_that_was_made_again_after_the_snapshot_is_another_one() -> None:
    made = replace(node(), metadata=replace(node().metadata, creation_timestamp="2026-05-01T10:00:00Z"))
    assert Field(NEW, nodes=(made,), checkpoints=(snapshot(),)).loss() is not None
    before = replace(node(), metadata=replace(node().metadata, creation_timestamp="2026-05-01T08:00:00Z"))
    assert Field(NEW, nodes=(before,), checkpoints=(snapshot(),)).loss() is None


def test_who_was_saved_last_is_reported_and_since_when() -> None:
    assert Field(NEW).fencing.predecessor_of(NEW).saved is None
    mine = Field(NEW, checkpoints=(snapshot(), snapshot(2, "later"))).fencing.predecessor_of(NEW).saved
    assert mine is not None
    assert (mine.workload_uid, mine.began_at) == ("uid-of-later", NOW - 3 * 3600)


def test_a_pod_that_ran_itself_since_then_does_not_ask_about_its_predecessor() -> None:
    mine = restored("new", since="2026-05-01T12:30:00Z")
    assert Field(NEW, restores=(restored(step="Ended", lost=True), mine)).loss() is None


def test_a_restore_that_never_ran_is_no_run() -> None:
    waiting = restored(step="Ended", since=None)
    assert Field(NEW, checkpoints=(snapshot(),), restores=(waiting,)).loss() is not None


def test_a_restored_pod_that_disappeared_is_waited_for_until_its_end_is_recorded() -> None:
    field = Field(NEW, nodes=(node(ready=False),), checkpoints=(SAVED_BEFORE,), restores=(restored(),))
    assert OUT_OF_SERVICE in (field.start() or "")
    field.nodes._drop(node())
    assert field.start() == "the end of old is being recorded"
    field.restores._put(restored(step="Ended", lost=True))
    assert (field.start(), field.loss()) == (None, "node n1 was lost with old")


def test_a_restored_pod_that_finished_is_waited_for_until_its_end_is_recorded() -> None:
    failed = pod(phase="Failed")
    field = Field(NEW, failed, checkpoints=(SAVED_BEFORE,), restores=(restored(),))
    assert field.start() == "the end of old is being recorded"


def test_a_grace_without_end_is_cut() -> None:
    field = Field(pod(grace=10**10), nodes=(node(),))
    field.pods._drop(pod(grace=10**10))
    field.now += LONGEST_RECORD_SECONDS + 60
    assert field.end() is None


def _in(namespace: str, number: int) -> Pod:
    one = pod(f"p{number}", grace=3600)
    return replace(one, metadata=replace(one.metadata, namespace=namespace))


def test_the_pods_of_a_tenant_displace_nothing_that_is_known_of_anothers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_pod_ends, "MOST_REMEMBERED", 2)
    finished = pod(phase="Failed")
    churn = [_in("ml", number) for number in range(9)]
    field = Field(finished, *churn, nodes=(node(ready=False),))
    for one in churn:
        field.pods._drop(one)
    field.pods._drop(finished)
    assert field.end() is None


def test_a_displaced_disappearance_counts_as_the_latest_of_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_pod_ends, "MOST_REMEMBERED", 1)
    field = Field(*(_in("ml", number) for number in range(2)), nodes=(node(),))
    field.now += 10_000
    for number in range(2):
        field.pods._drop(_in("ml", number))
    field.now += 3659
    first = WorkloadRef("uid-of-p0", "ml", "p0", "n1")
    assert field.end(first) is not None
    field.now += 1
    assert field.end(first) is None


def test_a_pod_without_a_node_has_run_nothing_and_displaces_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_pod_ends, "MOST_REMEMBERED", 1)
    finished, never_bound = pod(phase="Failed"), replace(pod("pending", phase="Failed"), spec=PodSpec())
    field = Field(finished, never_bound, nodes=(node(ready=False),))
    field.pods._drop(finished)
    field.pods._drop(never_bound)
    assert field.end() is None
    assert field.fencing.blocker_of(WorkloadRef("uid-of-pending", "bio", "pending", "")) is None


def test_only_evidence_of_a_node_is_reported() -> None:
    field, changed = Field(nodes=(node(),)), list[str]()
    field.fencing.subscribe(changed.append)
    field.nodes._put(replace(node(), metadata=replace(node().metadata, resource_version="2")))
    assert changed == []
    field.nodes._put(node(ready=False))
    field.nodes._drop(node())
    assert changed == ["n1", "n1"]


def test_a_change_of_one_of_several_predecessors_changes_no_reason() -> None:
    first, second = pod("a", deleted=True), pod("b", deleted=True)
    field = Field(NEW, first, second, nodes=(node(),))
    before = field.start()
    field.pods._put(replace(first, metadata=replace(first.metadata, resource_version="2")))
    assert field.start() == before == "a is being deleted, and may still run on node n1"


def test_a_pod_that_disappeared_unseen_has_the_grace_that_its_policy_gave_it() -> None:
    policy = msgspec.Raw(b'{"deadlineSeconds": 3600}')
    hour = replace(restored(), spec=replace(restored().spec, policy=policy))
    field = Field(nodes=(node(),), restores=(hour,))
    field.now += 3630 + 59
    assert field.end() is not None
    field.now += 1
    assert field.end() is None
