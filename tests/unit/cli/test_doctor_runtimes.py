"""Whether the doctor names nodes whose container runtime has known holes."""

from __future__ import annotations

import pytest

from cedana_sched.cli.doctor.cluster.known_holes import CONTAINERD, RUNC, good_versions, read_version
from cedana_sched.cli.doctor.cluster.runtimes import examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import NODES

from .cluster_to_look_at import Cluster, said

RUNC_UNKNOWN = "warn which runc the nodes have is not known: no Node says it"


def node(name: str, runtime: str = "containerd://2.3.2", kernel: str = "6.8.0-31-generic") -> Object:
    info = {"containerRuntimeVersion": runtime, "kernelVersion": kernel, "operatingSystem": "linux"}
    return {"metadata": {"name": name}, "status": {"nodeInfo": info}}


async def found_on(*nodes: Object) -> list[str]:
    return said(await examine(Cluster().put(NODES, *nodes).reads))


@pytest.mark.parametrize(
    ("version", "closed"),
    [
        ("1.6.39", (False, False)),
        ("1.7.28-0ubuntu1", (False, False)),
        ("1.7.29", (True, False)),
        ("v1.7.33", (True, True)),
        ("2.0.6", (False, False)),
        ("2.0.10", (True, True)),
        ("2.1.5", (True, False)),
        ("2.2.0", (True, False)),
        ("2.3.1", (True, False)),
        ("2.3.2", (True, True)),
        ("2.4.0", (True, True)),
        ("3.0.0", (True, True)),
    ],
)
def test_each_line_of_releases_was_mended_by_a_release_of_its_own(version: str, closed: tuple[bool, ...]) -> None:
    numbers = read_version(version)
    assert numbers is not None
    assert tuple(not hole.is_in(numbers) for hole in CONTAINERD) == closed


def test_runc_is_compared_likewise() -> None:
    (hole,) = RUNC
    assert [hole.is_in(one) for one in ((1, 1, 15), (1, 2, 7), (1, 2, 8), (1, 3, 2), (1, 3, 3), (1, 4, 0))] == [
        True, True, False, True, False, False,
    ]  # fmt: skip
    assert good_versions(CONTAINERD) == "1.7.33, 2.0.10, 2.1.9, 2.2.5, 2.3.2"


async def test_nodes_without_holes_are_well_but_for_what_no_node_says() -> None:
    assert await found_on(node("a"), node("b", "containerd://1.7.33")) == [
        "ok no node has a containerd with a hole that is known here: containerd://1.7.33, containerd://2.3.2",
        RUNC_UNKNOWN,
    ]


async def test_nodes_with_holes_are_named_with_their_versions() -> None:
    assert await found_on(node("a"), node("b", "containerd://2.1.5"), node("c", "containerd://2.0.5")) == [
        "warn containerd of 1 of 3 nodes is open to CVE-2024-25621, CVE-2025-64329: c (2.0.5)",
        "warn containerd of 2 of 3 nodes is open to CVE-2026-53488: b (2.1.5), c (2.0.5)",
        RUNC_UNKNOWN,
    ]


async def test_another_runtime_and_an_old_kernel_are_named() -> None:
    assert (await found_on(node("a", "cri-o://1.34.0"), node("b", kernel="4.18.0-553.el8")))[:-1] == [
        "warn no containerd runs the pods of a, and nothing is saved there",
        "warn the kernel is older than 5.9 on b (4.18.0-553.el8): CRIU does not work there",
    ]


async def test_a_version_that_cannot_be_read_has_no_known_hole() -> None:
    assert (await found_on(node("a", "containerd://nightly", "x")))[0].startswith("ok ")
    assert read_version("nightly") is None
