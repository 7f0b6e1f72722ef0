"""Which nodes run containers by something with known holes, or by something that the product cannot use.

A Node says which containerd and which kernel it has, and not which runc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cedana_sched.cli.doctor.cluster.known_holes import CONTAINERD, RUNC, good_versions, read_version
from cedana_sched.cli.doctor.cluster.reads import Reads, named
from cedana_sched.cli.doctor.findings import Finding, Level
from cedana_sched.cli.doctor.machine import OLDEST_KERNEL
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import NODES

CHECK: Final = "runtimes"
_CONTAINERD: Final = "containerd://"
_MOST_KINDS: Final = 5
"""Of versions that the last finding shows."""


class _Info(msgspec.Struct, frozen=True, rename="camel"):
    container_runtime_version: str = ""
    kernel_version: str = ""
    operating_system: str = "linux"


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    node_info: _Info = _Info()


class _Node(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: _Status = _Status()


async def examine(reads: Reads) -> list[Finding]:
    """Of each hole, and of each runtime that is none of containerd's, the nodes that have it."""
    nodes = await reads.listed(NODES, into=_Node)
    infos = {
        one.metadata.name: one.status.node_info for one in nodes if one.status.node_info.operating_system == "linux"
    }
    found = [*_others(infos), *_holes(infos), *_kernels(infos)]
    if not found:
        runtimes = sorted({info.container_runtime_version for info in infos.values()})
        says = f"no node has a containerd with a hole that is known here: {', '.join(runtimes[:_MOST_KINDS])}"
        found.append(Finding(CHECK, Level.OK, says))
    says = "which runc the nodes have is not known: no Node says it"
    remedy = f"'runc --version' on each, which should be {good_versions(RUNC)} or newer ({RUNC[0].names})"
    return [*found, Finding("runc", Level.WARN, says, remedy)] if infos else found


def _others(infos: Mapping[str, _Info]) -> list[Finding]:
    """Nodes whose runtime calls no handler of ours."""
    others = {node for node, info in infos.items() if not info.container_runtime_version.startswith(_CONTAINERD)}
    if not others:
        return []
    says = f"no containerd runs the pods of {named(others)}, and nothing is saved there"
    return [Finding(CHECK, Level.WARN, says, "keep protected pods on nodes with containerd 1.7 or 2")]


def _holes(infos: Mapping[str, _Info]) -> list[Finding]:
    found: list[Finding] = []
    for hole in CONTAINERD:
        open_on = {
            f"{node} ({info.container_runtime_version.removeprefix(_CONTAINERD)})"
            for node, info in infos.items()
            if (version := read_version(info.container_runtime_version.removeprefix(_CONTAINERD))) is not None
            and hole.is_in(version)
        }
        if open_on:
            says = f"containerd of {len(open_on)} of {len(infos)} nodes is open to {hole.names}: {named(open_on)}"
            remedy = f"install {good_versions((hole,))} or newer, or see whether your distribution has mended it"
            found.append(Finding(CHECK, Level.WARN, says, remedy))
    return found


def _kernels(infos: Mapping[str, _Info]) -> list[Finding]:
    old = {
        f"{node} ({info.kernel_version})"
        for node, info in infos.items()
        if (version := read_version(info.kernel_version)) is not None and version[:2] < OLDEST_KERNEL
    }
    if not old:
        return []
    says = f"the kernel is older than {'.'.join(map(str, OLDEST_KERNEL))} on {named(old)}: CRIU does not work there"
    return [Finding(CHECK, Level.WARN, says, "install a newer one, or keep protected pods away")]
