"""Whether the doctor names nodes whose container runtime has known holes."""

from __future__ import annotations

import msgspec
import pytest

from cedana_sched.cli.doctor.cluster.known_vulnerabilities import CONTAINERD, RUNC, fixed_versions, read_version
from cedana_sched.cli.doctor.cluster.runtimes import examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import NODES
from cedana_sched.model.compatibility import NodeDescription
from cedana_sched.model.objects.names import NODE_FACTS

from .cluster_to_look_at import Cluster, said

RUNC_IS_WELL = "ok no node has a runc with a hole that is known here: 1.3.3"


def node(
    name: str,
    runtime: str = "containerd://2.3.2",
    kernel: str = "6.8.0-31-generic",
    *,
    runc: str = "1.3.3",
    facts: str | None = None,
) -> Object:
    info = {"containerRuntimeVersion": runtime, "kernelVersion": kernel, "operatingSystem": "linux"}
    description = NodeDescription("x86_64", runc=runc)
    annotations = {NODE_FACTS: msgspec.json.encode(description).decode() if facts is None else facts}
    return {"metadata": {"name": name, "annotations": annotations}, "status": {"nodeInfo": info}}


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


@pytest.mark.parametrize(
    ("version", "closed"),
    [
        ("1.0.3", (False, False)),
        ("1.1.11", (False, False)),
        ("1.1.12", (True, False)),
        ("1.1.15", (True, False)),
        ("1.2.7", (True, False)),
        ("1.2.8", (True, True)),
        ("1.3.2", (True, False)),
        ("1.3.3", (True, True)),
        ("1.4.0", (True, True)),
        ("1.5.0", (True, True)),
    ],
)
def test_runc_is_compared_likewise(version: str, closed: tuple[bool, ...]) -> None:
    numbers = read_version(version)
    assert numbers is not None
    assert tuple(not hole.is_in(numbers) for hole in RUNC) == closed


def test_good_versions_have_none_of_the_holes() -> None:
    assert fixed_versions(CONTAINERD) == "1.7.33, 2.0.10, 2.1.9, 2.2.5, 2.3.2"
    assert fixed_versions(RUNC) == "1.2.8, 1.3.3, 1.4.0"
    assert fixed_versions(RUNC[:1]) == "1.1.12"


async def test_nodes_whose_runc_has_holes_are_named_with_its_version() -> None:
    found = await found_on(node("a", runc="1.1.11"), node("b", runc="1.2.7-1"), node("c"))
    assert found[1:] == [
        "warn runc of 1 of 3 nodes is open to CVE-2024-21626: a (1.1.11)",
        "warn runc of 2 of 3 nodes is open to CVE-2025-31133, CVE-2025-52565, CVE-2025-52881: a (1.1.11), b (1.2.7-1)",
    ]


@pytest.mark.parametrize("facts", ["", "{", "[]", '{"architecture": "x86_64"}', '{"runc": 3}', '{"runc": "nightly"}'])
async def test_nodes_of_which_no_agent_says_its_runc_are_named(facts: str) -> None:
    assert (await found_on(node("a"), node("b", facts=facts)))[1:] == [
        "warn which runc is on 1 of 2 nodes is not known, for no agent says it: b"
    ]


async def test_nodes_without_holes_are_well() -> None:
    assert await found_on(node("a"), node("b", "containerd://1.7.33")) == [
        "ok no node has a containerd with a hole that is known here: containerd://1.7.33, containerd://2.3.2",
        RUNC_IS_WELL,
    ]


async def test_nodes_with_holes_are_named_with_their_versions() -> None:
    assert await found_on(node("a"), node("b", "containerd://2.1.5"), node("c", "containerd://2.0.5")) == [
        "warn containerd of 1 of 3 nodes is open to CVE-2024-25621, CVE-2025-64329: c (2.0.5)",
        "warn containerd of 2 of 3 nodes is open to CVE-2026-53488: b (2.1.5), c (2.0.5)",
        RUNC_IS_WELL,
    ]


async def test_another_runtime_and_an_old_kernel_are_named() -> None:
    assert (await found_on(node("a", "cri-o://1.34.0"), node("b", kernel="4.18.0-553.el8")))[:-1] == [
        "warn no containerd runs the pods of a, and nothing is saved there",
        "warn the kernel is older than 5.9 on b (4.18.0-553.el8): CRIU does not work there",
    ]


async def test_a_version_that_cannot_be_read_has_no_known_hole() -> None:
    assert (await found_on(node("a", "containerd://nightly", "x")))[0].startswith("ok ")
    for text in ("nightly", "1.4.0-rc.2", "1.4.10-rc.1", "2.2.0~beta.0"):
        assert read_version(text) is None
