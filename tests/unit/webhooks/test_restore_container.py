"""What is called as ours is ours, or the pod is not protected."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks import pod_admission, restore_container
from cedana_sched_webhooks.admission import Answer
from tests.unit.webhooks.admission_builders import checkpoint, configuration, creation, knowledge, pod

CONFIGURATION = configuration()
CONTINUES = knowledge(checkpoints=[checkpoint(7)])
OURS = "/run/cedana-restore"
TOKEN = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}

HIDING = [
    "/",
    "/usr/bin",
    "usr/lib",
    "//usr",
    "/usr/",
    "/lib64",
    "/opt/x",
    "/etc",
    "/etc/ld.so.preload",
    "/mnt/../usr/bin",
    "/./usr",
    "/run",
    "/var/run/cedana-restore",
    "/run/cedana-restore/x",
    "/proc/self",
]
"""Where a mount, of files of the tenant's own, has our container run another program."""
BESIDE = ["/var/run/secrets/cloud", "/run/secrets/x", "/etc/ssl/certs", "/run/spire/sockets", "/vault/a..b", "/mnt/usr"]


def ask(body: Object, *, continues: bool = True) -> Answer:
    return pod_admission.admit_pod(creation(body, "lab"), CONTINUES if continues else knowledge(), CONFIGURATION)


def mutated(body: Object, *, continues: bool = True) -> Object:
    return apply_json_patch(body, ask(body, continues=continues).patch)


def injected() -> dict[str, Any]:
    made: dict[str, Any] = mutated(pod())["spec"]["initContainers"][0]
    return made


@pytest.mark.parametrize(
    "foreign",
    [
        {"image": "attacker/image:1"},
        {"command": ["/swap"]},
        {"args": ["/data"]},
        {"env": [{"name": "LD_PRELOAD", "value": "/dev/shm/x.so"}]},
        {"env": [{"name": "PYTHONPATH", "value": "/data"}]},
        {"envFrom": [{"configMapRef": {"name": "x"}}]},
        {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        {"volumeMounts": [{"name": names.RESTORE_VOLUME, "mountPath": "/elsewhere"}]},
        *({"volumeMounts": [{"name": "data", "mountPath": path, "readOnly": True}]} for path in HIDING),
        {"securityContext": {"privileged": True}},
        {"lifecycle": {"postStart": {"exec": {"command": ["/swap"]}}}},
        {"restartPolicy": "Always", "startupProbe": {"exec": {"command": ["/swap"]}}},
        {"workingDir": "/data", "stdin": True, "tty": True},
        {"volumeDevices": [{"name": "disk", "devicePath": "/dev/x"}]},
    ],
)
def test_a_container_that_is_called_as_ours_becomes_ours(foreign: dict[str, Any]) -> None:
    body = pod(initContainers=[{"name": "first"}, {**injected(), **foreign}])
    first, ours = mutated(body)["spec"]["initContainers"]
    assert first == {"name": "first"}
    assert ours == injected()


def test_what_the_api_server_and_other_webhooks_add_to_ours_stays() -> None:
    """Each of them has one more turn at most, after which nobody adds it again."""
    after = mutated(pod())
    ours = after["spec"]["initContainers"][0]
    ours["volumeMounts"] = [*ours["volumeMounts"], TOKEN]
    ours["env"] = [{"name": "AWS_ROLE_ARN", "value": "x"}]
    ours["resources"] = {"limits": {"cpu": "1"}}
    ours["terminationMessagePath"] = "/dev/termination-log"
    assert ask(after).decision == "unchanged"


@pytest.mark.parametrize("volume", [{"hostPath": {"path": "/"}}, {"emptyDir": {}}, {"persistentVolumeClaim": {}}])
def test_a_volume_that_is_called_as_ours_becomes_ours(volume: dict[str, Any]) -> None:
    body = pod(volumes=[{"name": "data", "emptyDir": {}}, {"name": names.RESTORE_VOLUME, **volume}])
    assert (
        mutated(body)["spec"]["volumes"] == mutated(pod(volumes=[{"name": "data", "emptyDir": {}}]))["spec"]["volumes"]
    )


def test_a_pod_that_does_not_continue_has_none_of_ours() -> None:
    """As the manifest of a running pod that is applied anew: nobody would end the wait."""
    body = mutated(pod())
    del body["metadata"]["annotations"][names.RESTORE_IDENTITY]
    after = mutated(body, continues=False)
    assert after["spec"]["initContainers"] == []
    assert after["spec"]["volumes"] == []


def test_another_runtime_can_have_none_of_ours() -> None:
    body = {**mutated(pod())}
    body["spec"]["runtimeClassName"] = "gvisor"
    after = mutated(body)
    assert after["spec"]["initContainers"] == []
    assert names.RESTORE_IDENTITY not in after["metadata"]["annotations"]


@pytest.mark.parametrize("kind", ["containers", "ephemeralContainers"])
def test_a_container_that_cannot_be_ours_costs_the_pod_its_protection(kind: str) -> None:
    body = pod()
    body["spec"][kind] = [*body["spec"].get(kind, []), {"name": names.RESTORE_CONTAINER}]
    assert "is reserved" in refused(body)


@pytest.mark.parametrize("kind", ["initContainers", "containers"])
def test_whose_container_reaches_our_volume_is_not_protected(kind: str) -> None:
    body = pod()
    spy = {"name": "spy", "volumeMounts": [{"name": names.RESTORE_VOLUME, "mountPath": "/x"}]}
    body["spec"][kind] = [*body["spec"].get(kind, []), spy]
    assert "volumeMounts" in refused(body)


@pytest.mark.parametrize(
    "key", [names.EVICTION_REQUESTED, names.RELEASED_HOLD, names.NOT_PREEMPTED, names.CONFIRM_DELETION]
)
def test_what_ours_say_of_a_pod_later_cannot_be_said_before(key: str) -> None:
    after = mutated(pod(annotations={key: "forged"}), continues=False)
    assert key not in after["metadata"]["annotations"]


def refused(body: Object) -> str:
    answer = ask(copy.deepcopy(body))
    assert answer.decision == "unclear"
    after = apply_json_patch(body, answer.patch)
    assert after["metadata"]["labels"][names.PROTECTED] == "false"
    return str(after["metadata"]["annotations"][names.NOT_PROTECTED])


@pytest.mark.parametrize("path", BESIDE)
def test_a_mount_that_hides_nothing_of_our_program_stays(path: str) -> None:
    mounted = {"name": "data", "mountPath": path, "readOnly": True}
    body = pod(initContainers=[{**injected(), "volumeMounts": [*injected()["volumeMounts"], mounted]}])
    [ours] = mutated(body)["spec"]["initContainers"]
    assert mounted in ours["volumeMounts"]


def test_restart_rules_that_are_not_ours_do_not_stay() -> None:
    everything = [{"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0]}}]
    foreign = {"restartPolicy": "OnFailure", "restartPolicyRules": everything}
    assert mutated(pod(initContainers=[{**injected(), **foreign}]))["spec"]["initContainers"] == [injected()]


def test_the_policy_knows_the_same_restart_rule() -> None:
    """A pod that the webhook has given one must not be refused."""
    policy = Path(__file__).parents[3] / "manifests/chart/templates/webhooks/reserved-names.yaml"
    assert (
        f"r.exitCodes.operator == 'In' && r.exitCodes.values == [{restore_container.START_FAILED}]"
        in policy.read_text()
    )


def test_the_policy_knows_the_same_places() -> None:
    policy = Path(__file__).parents[3] / "manifests/chart/templates/webhooks/reserved-names.yaml"
    for one in (
        restore_container._LED_ASTRAY,
        restore_container._OF_THE_IMAGE,
        restore_container._CERTIFICATES,
    ):
        assert f"'{one.pattern}'" in policy.read_text()
