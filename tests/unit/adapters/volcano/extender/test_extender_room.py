"""What is free on a node, as Volcano counts it."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from cedana_sched.kube import quantities
from cedana_sched_volcano.extender.free_resources import FreeResources, Node, Occupant

MIB = 1 << 20


def container(cpu: str = "", memory: str = "", **more: Any) -> dict[str, Any]:
    requests = {name: text for name, text in {"cpu": cpu, "memory": memory}.items() if text}
    return {"name": "c", "resources": {"requests": requests, "limits": {"cpu": "64"}}, **more}


class World:
    """One node, and pods as the API server tells of them."""

    def __init__(self, **allocatable: str) -> None:
        self.rooms = FreeResources(cast("Any", None))
        body = {"metadata": {"name": "n"}, "status": {"allocatable": allocatable}}
        self.rooms.nodes._put(msgspec.convert(body, Node))
        self._version = 0

    def put(self, name: str, *containers: dict[str, Any], node: str = "n", **fields: Any) -> None:
        self.rooms.pods._put(self._pod(name, *containers, node=node, **fields))

    def remove(self, name: str) -> None:
        self.rooms.pods._drop(self._pod(name))

    def _pod(self, name: str, *containers: dict[str, Any], node: str = "", **fields: Any) -> Occupant:
        self._version += 1
        metadata = {"name": name, "namespace": "lab", "uid": f"uid-{name}", "resourceVersion": str(self._version)}
        if fields.pop("ending", False):
            metadata["deletionTimestamp"] = "2026-05-01T12:00:00Z"
        status = {"nominatedNodeName": fields.pop("nominated", "")}
        spec = {"nodeName": node, "containers": containers, **fields}
        return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Occupant)

    def free(self, name: str, preemptor: str = "") -> float:
        found = self.rooms.free_resources("n", preemptor)
        assert found is not None
        return found[name]


def test_what_runs_takes_what_it_requests_until_it_is_gone() -> None:
    world = World(cpu="8", memory="1Gi", pods="110", **{"nvidia.com/gpu": "4"})
    world.put("a", container("1500m", "100Mi"), container("0.5"), overhead={"cpu": "100m"})
    assert world.free("cpu") == 8000 - 2100
    assert world.free("memory") == 924 * MIB
    assert world.free("pods") == 109
    assert world.free("nvidia.com/gpu") == 4000
    world.put("a", container("1"))  # resized
    assert world.free("cpu") == 7000
    world.remove("a")
    assert (world.free("cpu"), world.free("memory"), world.free("pods")) == (8000, 1024 * MIB, 110)
    assert not world.rooms._taken


def test_of_init_containers_only_those_that_stay_count() -> None:
    world = World(cpu="8")
    sidecar = container("1", restartPolicy="Always")
    world.put("a", container("2"), initContainers=[container("6"), sidecar])
    assert world.free("cpu") == 5000


def test_who_is_ending_leaves_its_room_and_who_waits_for_it_has_it() -> None:
    world = World(cpu="8")
    world.put("a", container("3"))
    world.put("a", container("3"), ending=True)
    assert world.free("cpu") == 8000
    world.put("b", container("5"), node="", nominated="n")
    assert world.free("cpu", preemptor="another") == 3000
    assert world.free("cpu", preemptor="uid-b") == 8000
    world.put("b", container("5"))  # it has got it
    assert world.free("cpu", preemptor="uid-b") == 3000


def test_what_is_elsewhere_or_nowhere_takes_nothing() -> None:
    world = World(cpu="8")
    world.put("a", container("3"), node="other")
    world.put("b", container("3"), node="")
    assert world.free("cpu") == 8000
    assert world.rooms.free_resources("other", "") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", 2000), ("500m", 500), ("0.1m", 1), ("1.5Ki", 1536_000), ("1e3", 10**6), ("1E", 10**21), ("12e-3", 12),
     ("1500u", 2), ("5n", 1), ("", 0), ("two", 0)],
)  # fmt: skip
def test_quantities_are_read_and_rounded_as_kubernetes_does(text: str, value: int) -> None:
    assert quantities.parse_thousandths(text) == value
