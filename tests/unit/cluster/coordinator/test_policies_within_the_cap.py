"""What adapters are told of a policy is within what the installation and the policy allow, whatever a pod names."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.policies import ClusterPolicies
from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.events import ObjectEvent
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.model.objects import names
from cedana_sched.model.policy import OnCheckpointFailure, OnFinalDeletion

KEEP = {"onCheckpointFailure": "KeepRunning"}


def policies(**specs: dict[str, Any]) -> ClusterPolicies:
    made = ClusterPolicies(cast("Any", None), 3_600)
    for name, spec in specs.items():
        made._informer._put(CachedPolicy(Metadata(name), spec))
    return made


@pytest.mark.parametrize(
    ("name", "deadlines"), [("long", (3_600, 3_600)), ("short", (30, 600)), ("gone", (600, 600)), (None, (600, 600))]
)
def test_a_deadline_is_no_longer_than_allowed(name: str | None, deadlines: tuple[float, float]) -> None:
    known = policies(long={"deadlineSeconds": 86_400, "restoreDeadlineSeconds": 86_400}, short={"deadlineSeconds": 30})
    found = known.policy_named(name, "lab")
    assert (found.deadline_seconds, found.restore_deadline_seconds) == deadlines


@pytest.mark.parametrize(("namespace", "seconds"), [("bio", 30), ("lab", 90)])
def test_a_policy_that_is_not_for_a_namespace_does_not_count_there(namespace: str, seconds: float) -> None:
    """It was named while no webhook answered, or the list was changed since."""
    listed = {"deadlineSeconds": 30, "allowedNamespaces": {"from": "Names", "names": ["bio"]}, **KEEP}
    found = policies(theirs=listed, default={"deadlineSeconds": 90}).policy_named("theirs", namespace)
    assert found.deadline_seconds == seconds
    assert (found.on_checkpoint_failure is OnCheckpointFailure.KEEP_RUNNING) is (namespace == "bio")


def test_a_policy_that_names_no_namespaces_keeps_nobody_running() -> None:
    found = policies(stays=KEEP).policy_named("stays", "lab")
    assert found.on_checkpoint_failure is OnCheckpointFailure.EVICT


@pytest.mark.parametrize(
    ("of_queue", "counts"), [("strict", "strict"), ("open", "own"), ("gone", "gone"), ("broken", "broken")]
)
def test_a_pod_that_no_webhook_has_seen_has_its_queues_policy_unless_that_lets_it_choose(
    of_queue: str, counts: str
) -> None:
    known = policies(own={}, strict={}, open={"podsMayChoose": True}, broken={"deadlineSeconds": -1})
    assert known.chosen_policy_of({names.POLICY: "own", names.QUEUE_POLICY: of_queue}) == counts
    assert known.chosen_policy_of({}) is None


@pytest.mark.parametrize(
    ("said", "of_queues", "seconds"),
    [
        ({names.POLICY: "own"}, (), 10),
        ({names.POLICY: "own"}, (None, "strict"), 20),
        ({names.POLICY: "own"}, ("strict", "open"), 10),
        ({names.POLICY: "own"}, ("open",), 10),
        ({names.POLICY: "own"}, ("gone",), 90),
        ({}, ("strict",), 20),
        ({names.POLICY: "own", names.QUEUE_POLICY: "own"}, ("strict",), 10),
        ({names.POLICY: "own", names.QUEUE_POLICY: "open"}, ("strict",), 10),
        ({names.QUEUE_POLICY: "open"}, ("strict",), 20),
        ({names.QUEUE_POLICY: "strict"}, ("open",), 20),
        ({names.QUEUE_POLICY: "gone"}, ("open",), 30),
        ({names.POLICY: "own", names.QUEUE_POLICY: "strict"}, (None,), 20),
        ({names.POLICY: "strict", names.QUEUE_POLICY: "strict"}, ("open",), 20),
        ({names.POLICY: "own", names.QUEUE_POLICY: "strict"}, ("open",), 10),
        ({}, (), 90),
    ],
)
def test_of_a_pods_queue_counts_what_its_policy_allows_now_and_that_at_the_pods_creation_as_well(
    said: dict[str, str], of_queues: tuple[str | None, ...], seconds: float
) -> None:
    known = policies(
        own={"deadlineSeconds": 10},
        strict={"deadlineSeconds": 20},
        open={"deadlineSeconds": 30, "podsMayChoose": True},
        default={"deadlineSeconds": 90},
    )
    for of_queue in of_queues:
        known.add_queue_policy_source(partial(_of_queue, of_queue))
    assert known.policy_of_pod(Pod(Metadata("md-0", "lab", annotations=said))).deadline_seconds == seconds


GAINS = {
    **KEEP,
    "imageMayChange": True,
    "serviceAccountMayChange": True,
    "onFinalDeletion": "Save",
    "retention": {"keepLast": 9},
}


@pytest.mark.parametrize(("at_creation", "now"), [("gains", "none"), ("none", "gains")])
def test_a_pod_gains_nothing_that_either_policy_of_its_queue_withholds(at_creation: str, now: str) -> None:
    allowed = {"allowedNamespaces": {"from": "All"}}
    known = policies(gains=GAINS | allowed, none={"retention": {"maxAgeSeconds": 60}} | allowed)
    known.add_queue_policy_source(partial(_of_queue, now))
    found = known.policy_of_pod(Pod(Metadata("md-0", "lab", annotations={names.QUEUE_POLICY: at_creation})))
    assert found.on_checkpoint_failure is OnCheckpointFailure.EVICT
    assert (found.image_may_change, found.service_account_may_change) == (False, False)
    assert found.on_final_deletion is OnFinalDeletion.DISCARD
    assert (found.retention.keep_last, found.retention.max_age_seconds) == (3, 60)


@pytest.mark.parametrize("of_queues", [("gains", "none"), ("none", "gains")])
@pytest.mark.parametrize("said", [{}, {names.QUEUE_POLICY: "gains"}, {names.POLICY: "gains"}])
def test_a_pod_gains_nothing_by_an_object_of_another_scheduler(
    said: dict[str, str], of_queues: tuple[str, str]
) -> None:
    """A tenant makes a Workload for the Job of a pod that is in a Queue of Volcano's."""
    allowed = {"allowedNamespaces": {"from": "All"}}
    known = policies(gains=GAINS | allowed, none=allowed)
    for of_queue in of_queues:
        known.add_queue_policy_source(partial(_of_queue, of_queue))
    found = known.policy_of_pod(Pod(Metadata("md-0", "lab", annotations=said)))
    assert found.on_checkpoint_failure is OnCheckpointFailure.EVICT
    assert (found.image_may_change, found.service_account_may_change) == (False, False)
    assert found.on_final_deletion is OnFinalDeletion.DISCARD
    assert found.retention.keep_last == 3


def _of_queue(policy: str | None, pod: Pod) -> str | None:
    return policy if pod.metadata.name == "md-0" else None


def test_what_counts_for_nobody_is_said_on_the_policy_once_for_each_change() -> None:
    told: list[ObjectEvent] = []
    known = ClusterPolicies(cast("Any", None), 3_600, publish=told.append)

    def put(name: str, **spec: Any) -> None:
        known._informer._put(CachedPolicy(Metadata(name, uid=f"uid-of-{name}"), spec))

    for _ in range(2):
        put("stays", **KEEP, imageMayChange=True)
    (one,) = told
    assert one.involved["kind"] == "CheckpointPolicy"
    assert (one.involved["name"], one.involved["uid"]) == ("stays", "uid-of-stays")
    assert (one.reason, one.warning) == ("FieldsIgnored", True)
    assert one.message == (
        "spec.onCheckpointFailure, spec.imageMayChange: applies to no pod: select namespaces in spec.allowedNamespaces"
    )
    put("default", **KEEP)
    put("theirs", **KEEP, allowedNamespaces={"from": "All"})
    put("broken", **KEEP, deadlineSeconds=-1)
    put("stays", **KEEP, allowedNamespaces={"from": "All"})
    assert told == [one]
    put("stays", **KEEP)
    assert [one.message.partition(":")[0] for one in told[1:]] == ["spec.onCheckpointFailure"]
