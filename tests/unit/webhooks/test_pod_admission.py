"""What becomes of a pod at CREATE, rule by rule."""

from __future__ import annotations

import base64
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.records import CheckpointStep
from cedana_sched.runtime_handler import wait
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import admission, admission_types, pod_admission, pod_mutations, restore_container
from cedana_sched_webhooks.admission import Answer
from cedana_sched_webhooks.caches import AdmissionCaches
from cedana_sched_webhooks.configuration import RestoreContainer
from tests.unit.webhooks.admission_builders import (
    checkpoint,
    configuration,
    creation,
    knowledge,
    namespace,
    node,
    pod,
    policy,
)

CONFIGURATION = configuration(excluded_namespaces={"monitoring"})


def ask(body: Object, known: AdmissionCaches | None = None, where: str = "lab") -> Answer:
    """Of a pod, as much as a replica decodes of it."""
    seen = msgspec.json.decode(msgspec.json.encode(body), type=admission_types.Pod)
    return pod_admission.admit_pod(creation(cast("Object", seen), where), known or knowledge(), CONFIGURATION)


def mutated(body: Object, known: AdmissionCaches | None = None) -> Object:
    answer = ask(body, known)
    assert answer.refusal is None
    return apply_json_patch(body, answer.patch)


def pre_stop(body: Object, container: int = 0) -> Any:
    return body["spec"]["containers"][container].get("lifecycle", {}).get("preStop")


# -- a first start


def test_a_first_start_gets_identity_and_pre_stop_and_nothing_else() -> None:
    before = pod()
    after = mutated(before)
    annotations = after["metadata"]["annotations"]
    token = annotations[names.PRESTOP_TOKEN]
    assert annotations == {
        names.ID: "sim",
        names.INDEX: "0",
        names.PRESTOP_TOKEN: token,
        names.ORIGINAL_GRACE_PERIOD: "30",
    }
    assert after["metadata"]["labels"] == {names.PROTECTED: "true"}
    assert len(token) >= 32
    asked = {"host": "127.0.0.1", "port": 10352, "path": f"/v1/hold/{token}/main", "scheme": "HTTP"}
    assert pre_stop(after) == {"httpGet": asked}
    assert after["spec"]["terminationGracePeriodSeconds"] == 630
    assert after["spec"].keys() == before["spec"].keys()


UID = "0a1b2c3d-0000-4000-8000-0000000000f1"


@pytest.mark.parametrize(
    ("known", "shared", "noted"),
    [(UID, (), UID), (UID, ("other",), UID), (UID, ("lab",), None), (UID, ("*",), None), (None, (), None)],
)
def test_a_pod_is_of_the_very_namespace_unless_its_name_is_shared(
    known: str | None, shared: tuple[str, ...], noted: str | None
) -> None:
    """What somebody else has written there goes, also where the namespace is not seen yet."""
    before = pod(annotations={names.NAMESPACE_UID: "0a1b2c3d-0000-4000-8000-00000000dead"})
    there = [] if known is None else [PartialObject(Metadata(name="lab", uid=known))]
    answer = pod_admission.admit_pod(
        creation(before), knowledge(namespaces=there), configuration(shared_namespaces=shared)
    )
    assert apply_json_patch(before, answer.patch)["metadata"]["annotations"].get(names.NAMESPACE_UID) == noted


def test_tokens_differ() -> None:
    tokens = {mutated(pod())["metadata"]["annotations"][names.PRESTOP_TOKEN] for _ in range(20)}
    assert len(tokens) == 20


def token_of(body: Object) -> str:
    token: str = body["metadata"]["annotations"][names.PRESTOP_TOKEN]
    return token


def test_a_copied_token_is_replaced_in_the_annotation_and_in_every_hook() -> None:
    """The agent finds the pod of a preStop call by its token: with a copied one it would answer for the other pod."""
    body = pod()
    body["spec"]["containers"].append({"name": "second"})
    running = mutated(body)
    copied = mutated(running)
    token = token_of(copied)
    assert token != token_of(running)
    assert [pre_stop(copied, number)["httpGet"]["path"] for number in (0, 1)] == [
        f"/v1/hold/{token}/main",
        f"/v1/hold/{token}/second",
    ]


def test_a_token_that_the_author_gave_is_replaced() -> None:
    given = "a" * 32
    assert token_of(mutated(pod(annotations={names.PRESTOP_TOKEN: given}))) != given


def test_a_pod_without_hook_of_ours_keeps_no_token_that_its_author_gave() -> None:
    """The agent would take calls with that token for calls of this pod, and wait for one when it ends."""
    body = pod(annotations={names.PRESTOP_TOKEN: "a" * 32})
    body["spec"]["containers"][0]["lifecycle"] = {"preStop": {"exec": {"command": ["/save"]}}}
    assert names.PRESTOP_TOKEN not in mutated(body)["metadata"]["annotations"]
    baseline = knowledge(namespaces=[namespace("lab", **{"pod-security.kubernetes.io/enforce": "baseline"})])
    given = pod(annotations={names.PRESTOP_TOKEN: "a" * 32})
    assert names.PRESTOP_TOKEN not in mutated(given, baseline)["metadata"]["annotations"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "localhost", "LOCALHOST.", "::1", "[::1]"])
@pytest.mark.parametrize("path", ["/v1/hold/{}/main", "v1/hold/{}/main", "//v1/hold/{}"])
def test_a_hook_with_the_token_of_another_pod_is_replaced_in_any_notation(host: str, path: str) -> None:
    body = pod()
    call = {"host": host, "port": 10352, "path": path.format("b" * 32)}
    body["spec"]["containers"][0]["lifecycle"] = {"preStop": {"httpGet": call}}
    after = mutated(body)
    assert pre_stop(after)["httpGet"]["path"] == f"/v1/hold/{token_of(after)}/main"


@pytest.mark.parametrize(
    "call", [{"path": "/v1/hold/x", "port": 80}, {"path": "/save", "host": "127.0.0.1", "port": 1}]
)
def test_a_hook_that_calls_another_server_is_the_users_own(call: dict[str, Any]) -> None:
    body = pod()
    body["spec"]["containers"][0]["lifecycle"] = {"preStop": {"httpGet": call}}
    assert pre_stop(mutated(body)) == {"httpGet": call}


def test_an_unprotected_pod_is_left_alone() -> None:
    assert ask(pod(None)) == Answer("not-ours")
    assert ask(pod("")) == Answer("not-ours")
    assert ask(pod(None, hostPID=True)) == Answer("not-ours")


@pytest.mark.parametrize("where", ["kube-system", "cedana-system", "monitoring"])
def test_excluded_namespaces_are_left_alone(where: str) -> None:
    assert ask(pod(), where=where) == Answer("not-ours")


def test_a_static_pod_is_left_alone() -> None:
    assert ask(pod(annotations={"kubernetes.io/config.mirror": "abc"})) == Answer("not-ours")


def test_an_annotation_protects_and_the_variable_wins_over_it() -> None:
    assert mutated(pod(None, annotations={names.ID: "from-queue"}))["metadata"]["annotations"][names.ID] == "from-queue"
    assert mutated(pod("mine", annotations={names.ID: "from-queue"}))["metadata"]["annotations"][names.ID] == "mine"


@pytest.mark.parametrize(
    ("labels", "annotations", "index"),
    [
        ({"batch.kubernetes.io/job-completion-index": "3"}, {}, "3"),
        ({}, {"batch.kubernetes.io/job-completion-index": "4"}, "4"),
        ({"apps.kubernetes.io/pod-index": "5"}, {}, "5"),
        ({}, {names.INDEX: "6"}, "6"),
        ({"batch.kubernetes.io/job-completion-index": "3"}, {names.INDEX: "6"}, "3"),
        ({}, {}, "0"),
    ],
)
def test_the_index(labels: dict[str, str], annotations: dict[str, str], index: str) -> None:
    after = mutated(pod(labels=labels, annotations=annotations))
    assert after["metadata"]["annotations"][names.INDEX] == index


# -- the hold


def test_a_pre_stop_of_the_users_own_is_kept_and_its_grace_too() -> None:
    own = {"exec": {"command": ["/save"]}}
    body = pod()
    body["spec"]["containers"][0]["lifecycle"] = {"preStop": own, "postStart": own}
    after = mutated(body)
    assert pre_stop(after) == own
    assert after["spec"]["terminationGracePeriodSeconds"] == 30
    assert names.PRESTOP_TOKEN not in after["metadata"]["annotations"], "the agent waits for no call of its kubelet"


def test_every_app_container_without_a_pre_stop_gets_one() -> None:
    body = pod(initContainers=[{"name": "sidecar", "restartPolicy": "Always"}])
    body["spec"]["containers"].append({"name": "second", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}})
    after = mutated(body)
    first, second = (pre_stop(after, number)["httpGet"]["path"] for number in (0, 1))
    assert second == first.removesuffix("main") + "second", "the agent sees which of them the kubelet ends"
    assert after["spec"]["containers"][1]["lifecycle"]["postStart"] == {"exec": {"command": ["x"]}}
    assert "lifecycle" not in after["spec"]["initContainers"][0]


def test_the_grace_period_follows_the_policy_and_is_never_lowered() -> None:
    known = knowledge(policies=[policy("short", deadlineSeconds=45.5), policy("default", deadlineSeconds=100)])
    named = pod(annotations={names.POLICY: "short"})
    assert mutated(named, known)["spec"]["terminationGracePeriodSeconds"] == 76
    assert mutated(pod(), known)["spec"]["terminationGracePeriodSeconds"] == 130
    assert mutated(pod(terminationGracePeriodSeconds=3600), known)["spec"]["terminationGracePeriodSeconds"] == 3600


def test_the_owners_grace_is_written_down_where_it_is_raised() -> None:
    raised = mutated(pod(terminationGracePeriodSeconds=5))
    assert raised["metadata"]["annotations"][names.ORIGINAL_GRACE_PERIOD] == "5"
    assert mutated(raised)["metadata"]["annotations"][names.ORIGINAL_GRACE_PERIOD] == "5", (
        "called again it finds its own"
    )
    assert (
        names.ORIGINAL_GRACE_PERIOD not in mutated(pod(terminationGracePeriodSeconds=3600))["metadata"]["annotations"]
    )


@pytest.mark.parametrize(("level", "held"), [("baseline", False), ("restricted", False), ("privileged", True)])
def test_pod_security_decides_on_the_pre_stop(level: str, held: bool) -> None:
    known = knowledge(namespaces=[namespace("lab", **{"pod-security.kubernetes.io/enforce": level})])
    after = mutated(pod(), known)
    assert (pre_stop(after) is not None) == held
    assert (names.PRESTOP_TOKEN in after["metadata"]["annotations"]) == held
    assert after["spec"]["terminationGracePeriodSeconds"] == (630 if held else 30)


# -- something to continue


def test_a_committed_snapshot_is_continued() -> None:
    known = knowledge(checkpoints=[checkpoint(6), checkpoint(7), checkpoint(None, step=CheckpointStep.FAILED)])
    body = pod(initContainers=[{"name": "prepare"}], volumes=[{"name": "data", "emptyDir": {}}])
    answer = ask(body, known)
    after = apply_json_patch(body, answer.patch)
    assert answer.decision == "restores"
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0@7"
    spec = after["spec"]
    assert spec["runtimeClassName"] == "cedana"
    assert spec["nodeSelector"] == {names.NODE_PREPARED: "true"}
    assert [one["name"] for one in spec["initContainers"]] == [names.RESTORE_CONTAINER, "prepare"]
    assert spec["volumes"][-1] == {"name": names.RESTORE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    assert "schedulingGates" not in spec
    assert "affinity" not in spec


def test_a_snapshot_in_flight_wins_and_gates() -> None:
    known = knowledge(checkpoints=[checkpoint(7), checkpoint(None, step=CheckpointStep.DUMPING)])
    body = pod(schedulingGates=[{"name": "other"}])
    answer = ask(body, known)
    after = apply_json_patch(body, answer.patch)
    assert answer.decision == "gated"
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0"
    assert after["spec"]["schedulingGates"] == [{"name": "other"}, {"name": names.RESTORE_GATE}]


def test_who_continues_what_another_cluster_has_saved_looks_for_it_in_the_store() -> None:
    continues = {names.EXPECT_SNAPSHOT: "true"}
    after = mutated(pod(annotations=continues), knowledge())
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0"
    assert after["spec"]["schedulingGates"] == [{"name": names.RESTORE_GATE}], "the coordinator knows what is in flight"
    here = mutated(pod(annotations=continues), knowledge(checkpoints=[checkpoint(7)]))
    assert here["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0@7"


def test_an_expectation_that_is_written_otherwise_is_a_warning() -> None:
    answer = ask(pod(annotations={names.EXPECT_SNAPSHOT: "True" + "!" * 500}), knowledge())
    (warning,) = answer.warnings
    assert warning.startswith(f"cedana: metadata.annotations[{names.EXPECT_SNAPSHOT}]: 'True!!")
    assert warning.endswith("(write 'true', or remove it)")
    assert len(warning) < 400
    for text in ("true", "false"):
        assert not ask(pod(annotations={names.EXPECT_SNAPSHOT: text}), knowledge()).warnings


def test_a_pod_that_has_its_node_already_is_not_gated() -> None:
    known = knowledge(checkpoints=[checkpoint(None, step=CheckpointStep.FROZEN)])
    spec = mutated(pod(nodeName="node1"), known)["spec"]
    assert "schedulingGates" not in spec
    assert spec["initContainers"][0]["name"] == names.RESTORE_CONTAINER


@pytest.mark.parametrize(
    "other",
    [
        checkpoint(1, index=1),
        checkpoint(1, identifier="other"),
        checkpoint(1, namespace="elsewhere"),
        checkpoint(None, step=CheckpointStep.FAILED),
        checkpoint(1, step=CheckpointStep.FAILED),
        checkpoint(1, deleted=True),
    ],
)
def test_what_is_not_its_own_or_failed_or_deleted_is_not_continued(other: Any) -> None:
    after = mutated(pod(), knowledge(checkpoints=[other]))
    assert "runtimeClassName" not in after["spec"]
    assert names.RESTORE_IDENTITY not in after["metadata"]["annotations"]


def test_a_checkpoint_that_has_changed_or_is_gone_counts_as_it_is_now() -> None:
    known = knowledge()
    flying = checkpoint(None, step=CheckpointStep.DUMPING)
    ready = msgspec.structs.replace(checkpoint(3), metadata=flying.metadata)
    known.on_checkpoint_change(None, flying)
    assert mutated(pod(), known)["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0"
    known.on_checkpoint_change(flying, ready)
    assert mutated(pod(), known)["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0@3"
    known.on_checkpoint_change(ready, None)
    assert names.RESTORE_IDENTITY not in mutated(pod(), known)["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("asked", "restores"), [("older/0@2", "older/0@2"), ("older@2", "older/0@2"), ("sim/3@1", "sim/3@1")]
)
def test_a_snapshot_that_a_person_asks_for_wins_over_the_newest(asked: str, restores: str) -> None:
    known = knowledge(checkpoints=[checkpoint(7), checkpoint(2, identifier="older")])
    after = mutated(pod(annotations={names.RESTORE_FROM: asked}), known)
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == restores
    assert after["metadata"]["annotations"][names.ID] == "sim"
    assert after["spec"]["runtimeClassName"] == "cedana"
    assert "schedulingGates" not in after["spec"]


@pytest.mark.parametrize("asked", ["x y", "sim/0@0", "sim@" + "9" * 5_000])
def test_who_asks_for_what_can_be_no_snapshot_returns_and_is_warned_of(asked: str) -> None:
    """Its policy may be to fail rather than to begin anew."""
    body = pod(annotations={names.RESTORE_FROM: asked})
    answer = ask(body, knowledge(checkpoints=[checkpoint(7)]))
    assert answer.decision == "gated"
    after = apply_json_patch(body, answer.patch)
    assert after["metadata"]["labels"][names.PROTECTED] == "true"
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0"
    assert after["spec"]["runtimeClassName"] == "cedana"
    (warning,) = answer.warnings
    assert warning.startswith(
        f"cedana: metadata.annotations[{names.RESTORE_FROM}]: '{asked[:100]}' names no snapshot (write id"
    )


def test_who_asks_for_nothing_in_an_empty_annotation_continues_the_newest() -> None:
    after = mutated(pod(annotations={names.RESTORE_FROM: ""}), knowledge(checkpoints=[checkpoint(7)]))
    assert after["metadata"]["annotations"][names.RESTORE_IDENTITY] == "sim/0@7"


def test_the_restore_container_is_admissible_under_pod_security_restricted() -> None:
    spec = mutated(pod(), knowledge(checkpoints=[checkpoint(1)]))["spec"]
    made = spec["initContainers"][0]
    assert made["image"] == "cedana-sched/agent:test"
    assert made["command"] == ["cedana-sched-restore-wait"]
    assert made["volumeMounts"] == [{"name": names.RESTORE_VOLUME, "mountPath": "/run/cedana-restore"}]
    assert made["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1001380016,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def restored_by(has_restart_rules: bool, **spec: Any) -> Object:
    """The restore container of a pod that continues, in a cluster that knows restart rules or does not."""
    known = knowledge(checkpoints=[checkpoint(1)])
    known.has_restart_rules = has_restart_rules
    body = pod(**spec)
    after = mutated(body, known)
    assert ask(after, known).decision == "unchanged"
    made: Object = after["spec"]["initContainers"][0]
    return made


def test_a_restore_container_whose_start_has_failed_is_started_again() -> None:
    """As where the kubelet ends while it starts one; else the pod fails. What the container says itself counts."""
    made = restored_by(has_restart_rules=True)
    assert made["restartPolicy"] == "Never"
    assert made["restartPolicyRules"] == [{"action": "Restart", "exitCodes": {"operator": "In", "values": [128]}}]
    assert 128 not in {*wait._STATUS.values(), wait.SILENT}


@pytest.mark.parametrize(
    ("has_restart_rules", "policy"), [(False, "Never"), (True, "OnFailure"), (True, "Always"), (True, None)]
)
def test_restart_rules_stand_nowhere_else(has_restart_rules: bool, policy: str | None) -> None:
    """An API server that does not know them refuses the pod; in other pods every failed start is repeated already."""
    made = restored_by(has_restart_rules, restartPolicy=policy)
    assert not {"restartPolicy", "restartPolicyRules"} & made.keys()


def test_the_restore_container_has_a_user_of_its_own() -> None:
    """What the kernel counts per user of the node is shared with all pods of that user."""
    made = restore_container.build_restore_container(RestoreContainer(image="i", user=1234), pod()["spec"])
    assert made["securityContext"]["runAsUser"] == 1234


@pytest.mark.parametrize("annotations", [{}, {names.RESTORE_IDENTITY: "sim/0@1"}])
def test_a_pod_with_users_of_its_own_is_told_at_once_that_no_snapshot_of_it_would_continue(
    annotations: dict[str, str],
) -> None:
    body = pod(annotations=annotations)
    body["spec"]["hostUsers"] = False
    answer = ask(body, knowledge(checkpoints=[checkpoint(1)]))
    assert answer.decision == "unclear"
    metadata = apply_json_patch(body, answer.patch)["metadata"]
    assert metadata["labels"][names.PROTECTED] == "false"
    assert names.RESTORE_IDENTITY not in metadata["annotations"]
    assert metadata["annotations"][names.NOT_PROTECTED] == (
        "spec.hostUsers: False gives each pod other users of the node, so that no snapshot continues in another pod "
        "(leave it out)"
    )
    assert "initContainers" not in apply_json_patch(body, answer.patch)["spec"]


def test_a_pod_with_users_of_its_own_that_nobody_wants_protected_is_left_alone() -> None:
    body = pod()
    body["spec"]["hostUsers"] = False
    del body["spec"]["containers"][0]["env"]
    assert ask(body, knowledge()).decision == "not-ours"


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, {}),
        ({"requests": {"cpu": "2", "memory": "4Gi"}}, {"requests": {"cpu": "2", "memory": "4Gi"}}),
        (
            {"requests": {"cpu": 1, "memory": "16Mi"}, "limits": {"cpu": 1, "memory": "16Mi", "nvidia.com/gpu": 1}},
            {"requests": {"cpu": 1, "memory": "64Mi"}, "limits": {"cpu": 1, "memory": "64Mi"}},
        ),
        ({"limits": {"memory": "67108863"}}, {"limits": {"memory": "64Mi"}}),
        ({"limits": {"memory": "1e9"}}, {"limits": {"memory": "1e9"}}),
        ({"limits": {"memory": "70M"}}, {"limits": {"memory": "70M"}}),
        ({"limits": {"memory": "1000m"}}, {"limits": {"memory": "64Mi"}}),
    ],
)
def test_the_restore_container_asks_for_no_more_than_the_first_container(resources: Any, expected: Any) -> None:
    body = pod()
    body["spec"]["containers"][0]["resources"] = resources
    spec = mutated(body, knowledge(checkpoints=[checkpoint(1)]))["spec"]
    assert spec["initContainers"][0]["resources"] == expected


# -- nodes that can continue it


def test_affinity_to_cpus_that_can_continue_it() -> None:
    nodes = [
        node("node1", cpu="aaa", features={"avx2"}),
        node("node2", cpu="bbb", features={"avx2", "avx512f"}),
        node("node3", cpu="ccc", features={"sse2"}),
        node("node4", cpu="bbb", features={"avx2", "avx512f"}),
        node("node5", cpu="ddd", features={"avx2"}, kernel=(5, 15)),
    ]
    after = mutated(pod(), knowledge(checkpoints=[checkpoint(1)], nodes=nodes))
    terms = after["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    wanted = {"key": names.CPU_FEATURES, "operator": "In", "values": ["aaa", "bbb"]}
    assert terms == {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}


def test_affinity_adds_to_every_alternative_that_the_user_gave() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    name = {"key": "metadata.name", "operator": "In", "values": ["node1"]}
    own = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [name]}, {}]
            }
        },
        "podAntiAffinity": {"x": 1},
    }
    known = knowledge(checkpoints=[checkpoint(1)], nodes=[node("node1", cpu="aaa")])
    after = mutated(pod(affinity=own, nodeSelector={"disk": "ssd"}), known)["spec"]
    wanted = {"key": names.CPU_FEATURES, "operator": "In", "values": ["aaa"]}
    assert after["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] == {
        "nodeSelectorTerms": [
            {"matchExpressions": [zone, wanted]},
            {"matchFields": [name], "matchExpressions": [wanted]},
            {},
        ]
    }
    assert after["affinity"]["podAntiAffinity"] == {"x": 1}
    assert after["nodeSelector"] == {"disk": "ssd", names.NODE_PREPARED: "true"}


def test_of_a_node_that_is_gone_nothing_is_known_and_nothing_asked() -> None:
    known = knowledge(checkpoints=[checkpoint(1, node="gone")], nodes=[node("node9", cpu="aaa")])
    answer = ask(pod(), known)
    assert answer.warnings == ()
    assert "affinity" not in apply_json_patch(pod(), answer.patch)["spec"]


def test_no_affinity_and_a_warning_when_no_node_can() -> None:
    strange = msgspec.structs.replace(node("node1", cpu="aaa", features={"x"}).metadata, labels={})
    nodes = [msgspec.structs.replace(node("node1", cpu="aaa"), metadata=strange), node("node2", cpu="bbb")]
    answer = ask(pod(), knowledge(checkpoints=[checkpoint(1)], nodes=nodes))
    assert answer.warnings == (
        (
            "cedana: no node of this cluster has the CPU features that sim/0@1 needs "
            "(add such a node; to begin anew, give the pod another id)"
        ),
    )
    assert "affinity" not in apply_json_patch(pod(), answer.patch)["spec"]


# -- what is not clear


def test_our_runtime_class_may_be_named_by_the_user() -> None:
    assert mutated(pod(runtimeClassName="cedana"))["spec"]["runtimeClassName"] == "cedana"
    restored = mutated(pod(runtimeClassName="cedana"), knowledge(checkpoints=[checkpoint(1)]))
    assert restored["spec"]["initContainers"][0]["name"] == names.RESTORE_CONTAINER


def test_another_runtime_class_is_warned_of_and_never_continued() -> None:
    answer = ask(pod(runtimeClassName="gvisor"), knowledge(checkpoints=[checkpoint(1)]))
    after = apply_json_patch(pod(runtimeClassName="gvisor"), answer.patch)
    assert after["spec"]["runtimeClassName"] == "gvisor"
    assert "initContainers" not in after["spec"]
    assert after["metadata"]["annotations"][names.ID] == "sim"
    (warning,) = answer.warnings
    assert "spec.runtimeClassName: 'gvisor'" in warning
    assert "leave it out" in warning


def two_containers(first: str, second: str) -> Object:
    body = pod(first)
    body["spec"]["containers"].append({"name": "second", "env": [{"name": "CEDANA_CHECKPOINT", "value": second}]})
    return body


def resolved_later() -> Object:
    body = pod()
    body["spec"]["containers"][0]["env"][0] = {"name": "CEDANA_CHECKPOINT", "valueFrom": {"fieldRef": {}}}
    return body


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (pod("no spaces"), ("spec.containers[0].env[CEDANA_CHECKPOINT]: 'no spaces'", "use 1 to 63 letters")),
        (pod("$(JOB)"), ("'$(JOB)'", "use 1 to 63 letters")),
        (pod(None, annotations={names.ID: "-x"}), (f"metadata.annotations[{names.ID}]: '-x'", "use 1 to 63")),
        (two_containers("a", "b"), ("spec.containers[1].env[CEDANA_CHECKPOINT]: 'b'", "the same value")),
        (resolved_later(), ("spec.containers[0].env[CEDANA_CHECKPOINT]: 'valueFrom'", "plain value")),
        (
            pod(annotations={names.POLICY: "gold"}),
            (f"metadata.annotations[{names.POLICY}]: 'gold'", "CheckpointPolicy"),
        ),
        (pod(annotations={names.POLICY: "broken"}), ("'broken'", "kubectl edit checkpointpolicy broken")),
        (pod(annotations={names.INDEX: "one"}), (f"metadata.annotations[{names.INDEX}]: 'one'", "from 0")),
    ],
)
def test_what_is_unclear_is_never_refused_only_warned_of(body: Object, parts: tuple[str, ...]) -> None:
    is_of_policy = names.POLICY in (body["metadata"].get("annotations") or {})  # whose pods continue, if they can
    checkpoints = [] if is_of_policy else [checkpoint(1)]
    answer = ask(body, knowledge(policies=[policy("broken", deadlineSeconds=-1)], checkpoints=checkpoints))
    assert answer.decision == "unclear"
    assert answer.refusal is None
    metadata = apply_json_patch(body, answer.patch)["metadata"]
    assert metadata["labels"][names.PROTECTED] == "false"
    assert answer.warnings[0].startswith(f"cedana: not protected: {metadata['annotations'][names.NOT_PROTECTED]}"[:200])
    assert "lifecycle" not in apply_json_patch(body, answer.patch)["spec"]["containers"][0]
    (warning,) = answer.warnings
    assert warning.startswith("cedana: not protected: ")
    assert len(warning) <= 256
    for part in parts:
        assert part in warning


def test_a_refused_pod_keeps_nothing_that_ours_write_on_one() -> None:
    forged = dict.fromkeys((*pod_mutations.WRITTEN_LATER, names.PRESTOP_TOKEN), "forged")
    body = pod("no spaces", annotations={**forged, "a": "b"})
    annotations = apply_json_patch(body, ask(body).patch)["metadata"]["annotations"]
    assert annotations.pop(names.NOT_PROTECTED) != "forged"
    assert annotations == {"a": "b"}


def test_of_two_variables_of_one_name_the_last_counts() -> None:
    body = pod("first")
    body["spec"]["containers"][0]["env"].append({"name": "CEDANA_CHECKPOINT", "value": "last"})
    assert mutated(body)["metadata"]["annotations"][names.ID] == "last"


# -- the answer as the API server reads it


def test_the_answer_on_the_wire() -> None:
    request = creation(pod())
    written = msgspec.json.decode(admission.write(request, ask(pod())))
    response = written["response"]
    assert (written["apiVersion"], written["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert (response["uid"], response["allowed"], response["patchType"]) == ("request", True, "JSONPatch")
    patch = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert apply_json_patch(pod(), patch)["metadata"]["annotations"][names.ID] == "sim"
    nothing = msgspec.json.decode(admission.write(request, Answer("not-ours")))
    assert nothing["response"] == {"uid": "request", "allowed": True}
