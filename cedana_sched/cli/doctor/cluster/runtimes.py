"""Checks for nodes whose container runtime has known vulnerabilities or is not supported.

A Node has the versions of containerd and the kernel (`status.nodeInfo`); the version of runc is from its agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.known_vulnerabilities import (
    CONTAINERD,
    RUNC,
    Vulnerability,
    fixed_versions,
    read_version,
)
from cedana_sched.cli.doctor.machine import OLDEST_KERNEL
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import NODES
from cedana_sched.model.objects.names import NODE_FACTS

CHECK: Final = "runtimes"
_CONTAINERD: Final = "containerd://"
_MOST_KINDS: Final = 5
"""Maximum number of versions in a finding."""


class _Info(msgspec.Struct, frozen=True, rename="camel"):
    container_runtime_version: str = ""
    kernel_version: str = ""
    operating_system: str = "linux"


class _NodeFacts(msgspec.Struct, frozen=True):
    """The part of `model.compatibility.NodeDescription` that the checks need."""

    runc: str = ""


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    node_info: _Info = _Info()


class _Node(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: _Status = _Status()


async def examine(reads: ClusterReader) -> list[Finding]:
    """Return a finding for each vulnerability and for unsupported runtimes and kernels, with the affected nodes."""
    nodes = [
        one for one in await reads.read_objects(NODES, into=_Node) if one.status.node_info.operating_system == "linux"
    ]
    infos = {one.metadata.name: one.status.node_info for one in nodes}
    containerds = {
        name: info.container_runtime_version.removeprefix(_CONTAINERD)
        for name, info in infos.items()
        if info.container_runtime_version.startswith(_CONTAINERD)
    }
    found = [
        *_check_other_runtimes(infos),
        *_check_vulnerabilities("containerd", containerds, CONTAINERD),
        *_check_kernel_versions(infos),
    ]
    if not found:
        runtimes = sorted({info.container_runtime_version for info in infos.values()})
        message = f"no node has a containerd with a hole that is known here: {', '.join(runtimes[:_MOST_KINDS])}"
        found.append(Finding(CHECK, Level.OK, message))
    return found + _check_runc_versions({one.metadata.name: _runc_version_of(one.metadata) for one in nodes})


def _check_other_runtimes(infos: Mapping[str, _Info]) -> list[Finding]:
    """Check for nodes without containerd, where the runtime handler `cedana` is not used."""
    others = {node for node, info in infos.items() if not info.container_runtime_version.startswith(_CONTAINERD)}
    if not others:
        return []
    message = f"no containerd runs the pods of {summarize_names(others)}, and nothing is saved there"
    return [Finding(CHECK, Level.WARN, message, "keep protected pods on nodes with containerd 1.7 or 2")]


def _check_vulnerabilities(
    program: str, versions: Mapping[str, str], holes: tuple[Vulnerability, ...]
) -> list[Finding]:
    """Return a finding for each vulnerability, with the affected nodes and their versions."""
    found: list[Finding] = []
    for hole in holes:
        open_on = {
            f"{node} ({text})"
            for node, text in versions.items()
            if (version := read_version(text)) is not None and hole.is_in(version)
        }
        if open_on:
            message = f"{program} of {len(open_on)} of {len(versions)} nodes is open to {hole.names}: "
            remedy = f"install {fixed_versions((hole,))} or newer, or see whether your distribution has mended it"
            found.append(Finding(CHECK, Level.WARN, message + summarize_names(open_on), remedy))
    return found


def _check_runc_versions(versions: Mapping[str, str]) -> list[Finding]:
    """Check versions of runc. `versions`: by node, as published by its agent; empty if unknown."""
    found = _check_vulnerabilities("runc", versions, RUNC)
    if unknown := {node for node, text in versions.items() if read_version(text) is None}:
        message = f"which runc is on {len(unknown)} of {len(versions)} nodes is not known, for no agent says it: "
        remedy = (
            f"'runc --version' there, which should be {fixed_versions(RUNC)} or newer; an agent that begins says it"
        )
        found.append(Finding(CHECK, Level.WARN, message + summarize_names(unknown), remedy))
    if versions and not found:
        kinds = sorted(set(versions.values()))
        message = f"no node has a runc with a hole that is known here: {', '.join(kinds[:_MOST_KINDS])}"
        found.append(Finding(CHECK, Level.OK, message))
    return found


def _runc_version_of(node: Metadata) -> str:
    try:
        return msgspec.json.decode(node.annotations.get(NODE_FACTS, ""), type=_NodeFacts).runc
    except (ValueError, RecursionError):  # absent, or written by a newer agent
        return ""


def _check_kernel_versions(infos: Mapping[str, _Info]) -> list[Finding]:
    old = {
        f"{node} ({info.kernel_version})"
        for node, info in infos.items()
        if (version := read_version(info.kernel_version)) is not None and version[:2] < OLDEST_KERNEL
    }
    if not old:
        return []
    oldest = ".".join(map(str, OLDEST_KERNEL))
    message = f"the kernel is older than {oldest} on {summarize_names(old)}: CRIU does not work there"
    return [Finding(CHECK, Level.WARN, message, "install a newer one, or keep protected pods away")]
