"""The hold of Kueue's suspension of any object, and of its stop of a pod; the rule is the one of Jobs."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.model.objects import names
from cedana_sched.model.records import HoldStep
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_kueue.webhooks import OBJECT, OBJECTS, POD, PODS
from cedana_sched_webhooks.admission import Answer, read
from cedana_sched_webhooks.schedulers import Endpoint
from tests.unit.adapters.kueue.test_kueue_suspensions import Desk, refused
from tests.unit.webhooks.admission_builders import KUEUE, hold

_TEMPLATES = {"roles": [{"template": {"metadata": {"annotations": {names.ID: "crew"}}}}]}


def asked_about(
    desk: Desk, path: str, now: Object, before: Object, *, user: str = KUEUE, namespace: str = "lab"
) -> Answer:
    """What a replica answers to the API server's review."""
    handler = desk.webhooks.handlers()[path]
    assert isinstance(handler, Endpoint)
    request = {
        "uid": "1",
        "namespace": namespace,
        "name": "crew",
        "userInfo": {"username": user},
        "object": now,
        "oldObject": before,
    }
    body = msgspec.json.encode({"request": request})
    return asyncio.run(handler(read(body, OBJECT if path == OBJECTS else POD)))


def suspension(
    field: str = "suspend", *, annotations: dict[str, str] | None = None, spec: Object | None = None
) -> tuple[Object, Object]:
    """An object that Kueue suspends, and takes the ids out of that it has put into the templates; and before."""
    metadata = {"name": "crew", "namespace": "lab", "uid": "job-uid", "annotations": annotations}

    def body(suspend: bool, templates: Object) -> Object:
        wanted: Object = {"suspend": suspend} if field == "suspend" else {"runPolicy": {"suspend": suspend}}
        return {"metadata": copy.deepcopy(metadata), "spec": {**templates, **wanted}}

    return body(True, {}), body(False, _TEMPLATES if spec is None else spec)


@pytest.mark.parametrize("field", ["suspend", "runPolicy"])
def test_a_suspension_without_a_hold_waits_thirty_seconds(field: str) -> None:
    desk = Desk()
    assert "at most 30 s more" in refused(asked_about(desk, OBJECTS, *suspension(field)))
    desk.seconds += 30.0
    assert asked_about(desk, OBJECTS, *suspension(field)).decision == "nobody-holds"


@pytest.mark.parametrize(
    "changes",
    [
        {"user": "system:serviceaccount:jobset-system:jobset-controller-manager"},
        {"namespace": "monitoring"},
    ],
)
def test_others_and_other_namespaces_never_wait(changes: dict[str, Any]) -> None:
    assert asked_about(Desk(), OBJECTS, *suspension(), **changes) == Answer("not-ours")


def test_an_object_without_protected_pods_never_waits() -> None:
    assert asked_about(Desk(), OBJECTS, *suspension(spec={"roles": []})) == Answer("not-ours")


def test_other_changes_of_an_object_never_wait() -> None:
    now, before = suspension()
    assert asked_about(Desk(), OBJECTS, now, now) == Answer("not-ours")
    assert asked_about(Desk(), OBJECTS, before, before) == Answer("not-ours")
    assert asked_about(Desk(), OBJECTS, before, now) == Answer("not-ours")


@pytest.mark.parametrize("annotations", [{names.RELEASED_HOLD: "hold-1"}, {names.RELEASED_HOLD: "hold-1", "a": "b"}])
def test_a_release_allows_and_the_moment_is_noted(annotations: dict[str, str]) -> None:
    now, before = suspension(annotations=annotations)
    answer = asked_about(Desk(hold()), OBJECTS, now, before)
    assert answer.decision == "released"
    left = apply_json_patch(now, answer.patch)["metadata"]["annotations"]
    others = {key: value for key, value in annotations.items() if key != names.RELEASED_HOLD}
    assert left == {**others, names.SUSPENDED_AT: "2026-05-01T12:00:31Z"}


def test_an_object_without_annotations_gets_one() -> None:
    now, before = suspension()
    answer = asked_about(Desk(hold(step=HoldStep.RELEASED)), OBJECTS, now, before)
    assert answer.decision == "over"
    assert apply_json_patch(now, answer.patch)["metadata"]["annotations"] == {
        names.SUSPENDED_AT: "2026-05-01T12:00:31Z"
    }


def test_the_second_eviction_is_held_though_the_first_hold_is_still_there() -> None:
    """Nothing else in most kinds says when an object began to run."""
    earlier = hold(created="2026-05-01T11:00:00Z", step=HoldStep.RELEASED)
    again = suspension(annotations={names.SUSPENDED_AT: "2026-05-01T11:00:31Z"})
    assert "at most 30 s more" in refused(asked_about(Desk(earlier), OBJECTS, *again))


@pytest.mark.parametrize("text", ["9999-a", "2026-05-01T13:00:00Z", "2026-05-01T11:00:31+00:00", ""])
def test_a_moment_that_no_suspension_of_ours_has_noted_counts_for_nothing(text: str) -> None:
    """The author of an object may write anything into it as it is created."""
    earlier = hold(created="2026-05-01T11:00:00Z", step=HoldStep.RELEASED)
    again = suspension(annotations={names.SUSPENDED_AT: text})
    assert asked_about(Desk(earlier), OBJECTS, *again).decision == "over"


def test_an_object_of_any_size_is_held() -> None:
    now, before = suspension(spec={**_TEMPLATES, "filler": ["x"] * 300_000})
    refused(asked_about(Desk(hold()), OBJECTS, now, before))


# -- pods


def stop(
    *,
    reason: str = "WorkloadEvictedDueToPreempted",
    kind: str = "TerminationTarget",
    annotations: dict[str, str] | None = None,
    label: str = "true",
    phase: str = "Running",
    deleted: bool = False,
    again: bool = False,
) -> tuple[Object, Object]:
    """A pod's status with what Kueue writes before it deletes the pod; and before."""
    metadata = {
        "uid": "pod-uid",
        "labels": {names.PROTECTED: label},
        "annotations": annotations,
        **({"deletionTimestamp": "2026-05-01T12:00:00Z"} if deleted else {}),
    }
    conditions = [{"type": kind, "status": "True", "reason": reason}]
    now = {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}
    return now, {"metadata": metadata, "status": {"phase": phase, "conditions": conditions if again else None}}


def held_pod(step: HoldStep = HoldStep.HOLDING) -> Desk:
    """A replica that knows a hold of the pod, through its Checkpoint."""
    one = hold(step=step)
    one = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, uid="signal"))
    desk = Desk(one)
    spec = CheckpointSpec(IdentitySpec("crew", 0), PodRef(uid="pod-uid"), hold_uid="signal")
    desk.known.on_checkpoint_change(None, Checkpoint(Metadata(name="c", namespace="lab"), spec))
    return desk


def test_a_stop_waits_for_its_hold_and_then_for_the_release() -> None:
    assert "at most 30 s more" in refused(asked_about(Desk(), PODS, *stop()))
    assert "at most 570 s more" in refused(asked_about(held_pod(), PODS, *stop()))
    assert asked_about(held_pod(), PODS, *stop(annotations={names.RELEASED_HOLD: "hold-1"})) == Answer("released")
    assert asked_about(held_pod(HoldStep.RELEASED), PODS, *stop()) == Answer("over")


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": "WorkloadDeleted"},
        {"kind": "DisruptionTarget"},
        {"label": "false"},
        {"phase": "Pending"},
        {"deleted": True},
        {"again": True},
    ],
)
def test_what_is_no_eviction_of_a_running_protected_pod_never_waits(fields: dict[str, Any]) -> None:
    assert asked_about(held_pod(), PODS, *stop(**fields)) == Answer("not-ours")


def test_a_pod_that_others_stop_never_waits() -> None:
    assert asked_about(held_pod(), PODS, *stop(), user="system:node:a") == Answer("not-ours")
