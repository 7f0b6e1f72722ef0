"""Every pod of ours is confined; what the agent and `prestop-proxy` have beyond it is named here, and is all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api.client import Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.images.catalog import find_images
from tests.e2e.product.rendering import RELEASE, pods_of, render

pytestmark = pytest.mark.any_shape

ALL: dict[str, Any] = {
    "storage": {"posix": {"path": "/data/snapshots"}},
    "armada": {"enabled": True, "url": "armada.example:50051", "queues": ["bio"]},
    "kueue": {"enabled": True},
    "volcano": {"enabled": True, "extender": {"enabled": True}},
}
AGENT, HOLDS = f"{RELEASE}-agent", f"{RELEASE}-prestop-proxy"
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
NOBODY = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532}
CONTEXTS: dict[str, Object] = {
    # CRIU gives back whatever a process had
    AGENT: {"privileged": True, "readOnlyRootFilesystem": True},
    # root, whom the agent's socket belongs to, without a capability; the type that SELinux lets use that socket
    HOLDS: {**CONFINED, "runAsUser": 0, "seLinuxOptions": {"type": "spc_t"}},
}
"""Of those that are not like all others."""
OF_THE_NODE = {
    AGENT: {"hostPID", "hostNetwork"},
    HOLDS: {"hostNetwork"},
}
HOST_PATHS = {
    AGENT: {"/opt/cedana-sched", "/run/cedana-sched", "/var/lib/cedana-sched", "/data/snapshots"},
    HOLDS: {"/run/cedana-sched/holds"},
}
"""Folders of ours alone, and the store."""
OF_A_POD = ("runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile", "seLinuxOptions")
"""What a container takes from its pod where it says nothing itself."""


def contexts(pod: Object) -> Iterator[Object]:
    """What counts for each container of a pod."""
    of_pod = {key: value for key, value in pod.get("securityContext", {}).items() if key in OF_A_POD}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        yield {**of_pod, **container.get("securityContext", {})}


async def test_containers_are_confined(helm: Binaries) -> None:
    pods = dict(pods_of(await render(helm, ALL)))
    assert pods.keys() > CONTEXTS.keys()
    for name, pod in pods.items():
        for context in contexts(pod):
            assert context == CONTEXTS.get(name, {**CONFINED, **NOBODY}), name


async def test_what_pods_have_of_their_node_is_named(helm: Binaries) -> None:
    for name, pod in pods_of(await render(helm, ALL)):
        shared = {key for key in ("hostPID", "hostNetwork", "hostIPC") if pod.get(key)}
        assert shared == OF_THE_NODE.get(name, set()), name
        paths = {volume["hostPath"]["path"] for volume in pod.get("volumes", ()) if "hostPath" in volume}
        assert paths == HOST_PATHS.get(name, set()), name


async def test_the_image_of_whoever_has_no_privileges_runs_as_the_user_that_the_chart_names() -> None:
    *_, user = (
        line.split()[1]
        for line in find_images()["control"].containerfile.read_text().splitlines()
        if line.startswith("USER ")
    )
    assert user == f"{NOBODY['runAsUser']}:{NOBODY['runAsGroup']}", "by its number: a name tells the kubelet nothing"
