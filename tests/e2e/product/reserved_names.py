"""Pods that use the names of ours: as the webhook makes them, and as somebody else may."""

from __future__ import annotations

import copy
from typing import Any

from cedana_sched.model.objects import names
from cedana_sched_webhooks.configuration import RestoreContainer
from cedana_sched_webhooks.restore_container import put_restore_container
from tests.cluster.api.client import Object

IMAGE = "registry.invalid/cedana-sched-agent:t1"
OTHER = {"name": "data", "mountPath": "/data"}
HIDES = {"name": "data", "mountPath": "/usr/bin", "readOnly": True}
RESERVED = {"name": names.RESTORE_VOLUME, "mountPath": "/x"}
TOKEN = {"name": "data", "mountPath": "/var/run/secrets/cloud", "readOnly": True}


def injected(name: str, *, may_have_rules: bool = False) -> Object:
    """A pod as the webhook leaves it that continues one, in a cluster that knows restart rules or does not."""
    made: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "registry.invalid/app"}],
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }
    put_restore_container(made, RestoreContainer(image=IMAGE), may_have_rules=may_have_rules)
    return made


def with_ours(name: str, **changes: Any) -> Object:
    """The same, with something in the restore container that is not the webhook's."""
    made = injected(name)
    made["spec"]["initContainers"][0].update(copy.deepcopy(changes))
    return made


def harmless() -> dict[str, Object]:
    """What the policy lets through, by what is done."""
    mounted = injected("x")["spec"]["initContainers"][0]["volumeMounts"]
    plain = injected("plain")
    for kind in ("initContainers", "volumes"):
        del plain["spec"][kind]
    return {
        "injected": injected("injected"),
        "injected-with-rules": injected("injected-with-rules", may_have_rules=True),
        "cloud": with_ours(
            "cloud", env=[{"name": "AWS_ROLE_ARN", "value": "x"}], volumeMounts=[*mounted, copy.deepcopy(TOKEN)]
        ),
        "plain": plain,
    }


def foreign() -> dict[str, tuple[Object, str]]:
    """What it refuses, with the words, by what is done."""
    mounted = injected("x")["spec"]["initContainers"][0]["volumeMounts"]
    container = injected("container")
    container["spec"]["containers"].append({**container["spec"].pop("initContainers")[0]})
    reaches = injected("reaches")
    reaches["spec"]["containers"][0]["volumeMounts"] = [RESERVED]
    reaches_early = injected("reaches-early")
    reaches_early["spec"]["initContainers"].append({"name": "x", "image": "x", "volumeMounts": [RESERVED]})
    volume = injected("volume")
    volume["spec"]["volumes"][-1] = {"name": names.RESTORE_VOLUME, "hostPath": {"path": "/"}}
    escalates = with_ours("escalates", securityContext={"runAsNonRoot": True})
    add = copy.deepcopy(injected("x")["spec"]["initContainers"][0]["securityContext"])
    add["capabilities"]["add"] = ["SYS_ADMIN"]
    another, other, rights = "and this one is another", "variables or mounts", "has rights"
    return {
        "image": (with_ours("image", image="attacker/image"), another),
        "command": (with_ours("command", command=["/swap"]), another),
        "entrypoint": (with_ours("entrypoint", command=None), another),
        "arguments": (with_ours("arguments", args=["/data"]), another),
        "sidecar": (with_ours("sidecar", restartPolicy="Always"), another),
        "kept-alive": (with_ours("kept-alive", **_restarted(0, 1)), "has restart rules"),
        "whole-pod": (with_ours("whole-pod", **_restarted(128, action="RestartAllContainers")), "has restart rules"),
        "variables": (with_ours("variables", envFrom=[{"configMapRef": {"name": "x"}}]), another),
        "folder": (with_ours("folder", workingDir="/data"), another),
        "loader": (with_ours("loader", env=[{"name": "LD_PRELOAD", "value": "x"}]), other),
        "python": (with_ours("python", env=[{"name": "PYTHONWARNINGS", "value": "x"}]), other),
        "mount": (with_ours("mount", volumeMounts=[*mounted, OTHER]), other),
        "hides": (with_ours("hides", volumeMounts=[*mounted, HIDES]), other),
        "part": (with_ours("part", volumeMounts=[{**mounted[0], "subPath": "x"}]), other),
        "escalates": (escalates, rights),
        "capability": (with_ours("capability", securityContext=add), rights),
        "container": (container, "call yours otherwise"),
        "volume": (volume, "volume that cedana-sched adds"),
        "reaches": (reaches, "for the container of that name alone"),
        "reaches-early": (reaches_early, "for the container of that name alone"),
    }


def _restarted(*codes: int, action: str = "Restart") -> Object:
    rule = {"action": action, "exitCodes": {"operator": "In", "values": [*codes]}}
    return {"restartPolicy": "Never", "restartPolicyRules": [rule]}
