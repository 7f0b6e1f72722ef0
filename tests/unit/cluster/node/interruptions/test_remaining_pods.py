"""Whether pods are left on a node that its provider takes away."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.node.interruptions.remaining_pods import LOOK_SECONDS, RemainingPods
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.resources import PODS, Resource


def pod(phase: str = "Running", owner: str | None = None) -> dict[str, Any]:
    owners = [] if owner is None else [{"apiVersion": "v1", "kind": owner, "name": "o", "uid": "u", "controller": True}]
    return {"metadata": {"name": "p", "ownerReferences": owners}, "status": {"phase": phase}}


class Server:
    """Lists these pods, or fails."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods: tuple[dict[str, Any], ...] = pods
        self.lists = 0
        self.fails = False

    async def list_all(self, resource: Resource, *, query: dict[str, str], into: type[Pod]) -> tuple[Any, str]:
        assert (resource, query) == (PODS, {"fieldSelector": "spec.nodeName=node-1"})
        self.lists += 1
        if self.fails:
            raise ApiUnavailableError("no answer")
        return msgspec.convert(self.pods, tuple[into, ...]), "7"  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ((), False),
        ((pod("Succeeded"), pod("Failed", "Job")), False),
        ((pod(owner="DaemonSet"), pod(owner="Node")), False),
        ((pod(),), True),
        ((pod(owner="DaemonSet"), pod("Pending", "ReplicaSet")), True),
    ],
)
async def test_pods_that_end_with_the_node(left: tuple[dict[str, Any], ...], expected: bool) -> None:
    remaining = RemainingPods(cast("Api", Server(*left)), "node-1", lambda: 10.0)
    assert await remaining.has_pods() is expected


async def test_they_are_not_listed_at_every_poll() -> None:
    server, seconds = Server(), [10.0]
    remaining = RemainingPods(cast("Api", server), "node-1", lambda: seconds[0])
    assert not await remaining.has_pods()
    assert await remaining.has_pods(), "it is unknown"
    seconds[0] += LOOK_SECONDS
    server.fails = True
    assert await remaining.has_pods(), "it is unknown"
    seconds[0] += LOOK_SECONDS
    server.fails = False
    assert not await remaining.has_pods()
    assert server.lists == 3
