"""What a policy writes into new pods where they leave it unset, and that their snapshots are restored all the same."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.model.records import CheckpointStep
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import admission_types, pod_admission
from cedana_sched_webhooks.admission import Answer
from cedana_sched_webhooks.pod_admission import PodAdmission
from cedana_sched_webhooks.replica_numbers import Distinction, ReplicaNumbers
from cedana_sched_webhooks.validation import check_policy
from tests.unit.webhooks.admission_builders import checkpoint, configuration, creation, knowledge, pod, policy

OFF = {"name": "UV_USE_IO_URING", "value": "0"}
ID = {"name": CHECKPOINT_VARIABLE, "value": "sim"}
PROFILE = {"type": "RuntimeDefault"}
SAID = "cedana: the pod does not get the seccomp profile RuntimeDefault: the pod of its snapshot had not got it"


def ask(body: Object, *checkpoints: Checkpoint, **defaults: Any) -> Answer:
    policies = (policy("default", podDefaults=defaults),) if defaults else ()
    seen = msgspec.json.decode(msgspec.json.encode(body), type=admission_types.Pod)
    known = knowledge(policies=policies, checkpoints=checkpoints)
    return pod_admission.admit_pod(creation(cast("Object", seen)), known, configuration())


def spec_of(body: Object, *checkpoints: Checkpoint, **defaults: Any) -> Any:
    return apply_json_patch(body, ask(body, *checkpoints, **defaults).patch)["spec"]


def saved(*, defaulted: bool, **fields: Any) -> Checkpoint:
    one = checkpoint(**fields)
    annotations = {names.SECCOMP_DEFAULTED: "RuntimeDefault"} if defaulted else {}
    return replace(one, metadata=replace(one.metadata, annotations=annotations))


def test_libuv_does_without_io_uring_unless_an_admin_says_otherwise() -> None:
    assert spec_of(pod())["containers"][0]["env"] == [ID, OFF]
    assert spec_of(pod(), disableLibuvIoUring=True)["containers"][0]["env"] == [ID, OFF]
    assert spec_of(pod(), disableLibuvIoUring=False)["containers"][0]["env"] == [ID]


def test_what_a_container_says_itself_stays() -> None:
    own = {"name": "UV_USE_IO_URING", "value": "1"}
    body = pod()
    body["spec"]["containers"] = [
        {"name": "a", "env": [ID, own]},
        {"name": "b"},
        {"name": "c", "env": None},
        {"name": "d", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
    ]
    envs = [one["env"] for one in spec_of(body)["containers"]]
    assert envs == [[ID, own], [OFF], [OFF], [*body["spec"]["containers"][3]["env"], OFF]]


def test_sidecars_are_saved_too_and_other_initial_containers_are_not() -> None:
    first, sidecar = {"name": "first", "env": [{"name": "A", "value": "b"}]}, {"name": "s", "restartPolicy": "Always"}
    spec = spec_of(pod(initContainers=[first, sidecar]), saved(defaulted=False))
    assert [one["name"] for one in spec["initContainers"]] == [names.RESTORE_CONTAINER, "first", "s"]
    assert spec["initContainers"][1] == first
    assert spec["initContainers"][2] == {**sidecar, "env": [OFF]}
    assert "env" not in spec["initContainers"][0]


def test_a_repeated_call_changes_nothing() -> None:
    before = pod(initContainers=[{"name": "s", "restartPolicy": "Always"}])
    after = apply_json_patch(before, ask(before, seccompProfile=PROFILE).patch)
    assert ask(after, seccompProfile=PROFILE).decision == "unchanged"


def test_unprotected_pods_are_left_alone() -> None:
    assert ask(pod(None), seccompProfile=PROFILE).patch == ()


class _Siblings:
    async def distinguish(self, pod: Object, namespace: str) -> Distinction:
        return Distinction()


async def test_variables_that_are_not_kept_meanwhile_stay() -> None:
    """While the Job of a pod is asked for, most variables are not in memory."""
    other = {"name": "LICENCE", "value": "x" * 100}
    body = pod()
    body["spec"]["containers"] = [
        {"name": "a", "env": [other, ID, other]},
        {"name": "b", "env": [other]},
        {"name": "c", "env": [{"name": OFF["name"], "value": "1"}, other]},
    ]
    admission = PodAdmission(knowledge(), configuration(), cast("ReplicaNumbers", _Siblings()))
    seen = msgspec.json.decode(msgspec.json.encode(body), type=admission_types.Pod)
    answer = await admission.answer(creation(cast("Object", seen)))
    envs = [one["env"] for one in apply_json_patch(body, answer.patch)["spec"]["containers"]]
    assert envs == [[other, ID, other, OFF], [other, OFF], body["spec"]["containers"][2]["env"]]


def test_seccomp_is_an_admins_decision() -> None:
    assert "securityContext" not in spec_of(pod())
    assert "securityContext" not in spec_of(pod(), seccompProfile=None)
    assert spec_of(pod(), seccompProfile=PROFILE)["securityContext"] == {"seccompProfile": PROFILE}


def test_a_profile_that_the_pod_names_stays_and_so_does_all_else() -> None:
    own = {"runAsUser": 7, "seccompProfile": {"type": "Unconfined"}}
    assert spec_of(pod(securityContext=own), seccompProfile=PROFILE)["securityContext"] == own
    security = spec_of(pod(securityContext={"runAsUser": 7}), seccompProfile=PROFILE)["securityContext"]
    assert security == {"runAsUser": 7, "seccompProfile": PROFILE}
    assert "securityContext" not in spec_of(pod(os={"name": "windows"}), seccompProfile=PROFILE)


@pytest.mark.parametrize("own", [None, {"seccompProfile": PROFILE}])
def test_the_pod_is_marked_only_if_the_policy_gave_the_profile(own: Object | None) -> None:
    body = pod(annotations={}, securityContext=own)
    annotations = apply_json_patch(body, ask(body, seccompProfile=PROFILE).patch)["metadata"]["annotations"]
    assert annotations.get(names.SECCOMP_DEFAULTED) == ("RuntimeDefault" if own is None else None)


def test_a_mark_without_a_profile_is_taken_away() -> None:
    body = pod(annotations={names.SECCOMP_DEFAULTED: "RuntimeDefault"})
    annotations = apply_json_patch(body, ask(body).patch)["metadata"]["annotations"]
    assert names.SECCOMP_DEFAULTED not in annotations


@pytest.mark.parametrize("defaulted", [True, False])
@pytest.mark.parametrize("step", [CheckpointStep.READY, CheckpointStep.DUMPING])
def test_a_pod_is_confined_as_the_pod_of_its_snapshot_was(step: CheckpointStep, *, defaulted: bool) -> None:
    """CRIU restores processes with their own filters, so an unconfined one is refused in a confined container."""
    source = saved(defaulted=defaulted, step=step)
    assert ("securityContext" in spec_of(pod(), source, seccompProfile=PROFILE)) is defaulted
    assert (SAID in ask(pod(), source, seccompProfile=PROFILE).warnings) is not defaulted


def test_the_newest_snapshot_counts() -> None:
    older, newer = saved(defaulted=False, generation=1), saved(defaulted=True, generation=2)
    assert "securityContext" in spec_of(pod(), older, newer, seccompProfile=PROFILE)
    chosen = pod(annotations={names.RESTORE_FROM: "sim@1"})
    assert "securityContext" not in spec_of(chosen, older, newer, seccompProfile=PROFILE)


def test_a_snapshot_of_another_cluster_is_taken_to_have_none() -> None:
    body = pod(annotations={names.EXPECT_SNAPSHOT: "true"})
    assert "securityContext" not in spec_of(body, seccompProfile=PROFILE)


@pytest.mark.parametrize(("others", "confined"), [(True, True), (False, False)])
def test_a_pod_that_restores_any_snapshot_of_its_id_is_confined_if_all_were(*, others: bool, confined: bool) -> None:
    known = knowledge(
        policies=[policy("default", podDefaults={"seccompProfile": PROFILE})],
        checkpoints=[saved(defaulted=True, index=5), saved(defaulted=others, index=6)],
    )
    body = pod()
    answer = pod_admission.admit_pod(creation(body), known, configuration(), Distinction(by_chance=77))
    assert ("securityContext" in apply_json_patch(body, answer.patch)["spec"]) is confined


def test_a_profile_of_the_nodes_is_named_with_its_path() -> None:
    """Another profile than the snapshot's is none of the same: their strength has no order."""
    profile = {"type": "Localhost", "localhostProfile": "profiles/no-io-uring.json"}
    body = pod()
    after = apply_json_patch(body, ask(body, seccompProfile=profile).patch)
    assert after["spec"]["securityContext"] == {"seccompProfile": profile}
    assert after["metadata"]["annotations"][names.SECCOMP_DEFAULTED] == "Localhost/profiles/no-io-uring.json"
    assert "securityContext" not in spec_of(pod(), saved(defaulted=True), seccompProfile=profile)


@pytest.mark.parametrize(
    "profile",
    [
        {"type": "Unconfined"},
        {"type": "Localhost"},
        {"type": "RuntimeDefault", "localhostProfile": "a.json"},
        {"type": "Localhost", "localhostProfile": "/etc/a.json"},
        {"type": "Localhost", "localhostProfile": "a/../../b.json"},
        {"localhostProfile": "a.json"},
    ],
)
def test_a_profile_that_no_pod_can_have_is_refused(profile: Object) -> None:
    with pytest.raises(UsageError, match=r"^spec\.podDefaults\.seccompProfile"):
        check_policy({"metadata": {"name": "p"}, "spec": {"podDefaults": {"seccompProfile": profile}}}, 3600)
