"""Checks that snapshots are sealed, and that the agents' key exists. No data of a Secret is read."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.release_settings import read_settings
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import SECRETS, Resource
from cedana_sched.model.errors import CedanaSchedError

CHECK: Final = "sealing"
DAEMON_SETS: Final = Resource("apps/v1", "DaemonSet", "daemonsets")
_VOLUME: Final = "keys"
"""Name of the key volume of the agents' pods in the chart."""


class _Secret(msgspec.Struct, frozen=True, rename="camel"):
    secret_name: str = ""


class _Volume(msgspec.Struct, frozen=True):
    name: str
    secret: _Secret | None = None


class _PodSpec(msgspec.Struct, frozen=True):
    volumes: tuple[_Volume, ...] = ()


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Spec(msgspec.Struct, frozen=True):
    template: _Template = _Template()


class _DaemonSet(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _Spec = _Spec()


async def check_key_secret(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check that the Secret of the agents' pods exists."""
    agents = await reads.find(DAEMON_SETS, f"{one.name}-agent", one.namespace, into=_DaemonSet)
    if agents is None:
        message = f"not known: there is no DaemonSet {one.name}-agent in namespace {one.namespace}"
        raise CedanaSchedError(message, remedy="upgrade the release, which writes it again")
    mounted = [each.secret for each in agents.spec.template.spec.volumes if each.name == _VOLUME]
    if not mounted or mounted[0] is None:
        message = "snapshots are not sealed: who reads the store reads memory, and who writes it owns nodes"
        return [
            Finding(CHECK, Level.WARN, message, "set storage.sealing.enabled, and upgrade: docs/kubernetes.md#upgrade")
        ]
    name = mounted[0].secret_name
    if not await reads.exists(SECRETS, name, one.namespace):
        message = f"Secret {name} is not there: no new agent starts, and without its key all snapshots are lost"
        return [Finding(CHECK, Level.FAIL, message, "make it again from your copy of the keys")]
    return [Finding(CHECK, Level.OK, f"the key that seals snapshots is in Secret {name}; keep a copy elsewhere")]


async def check_unsealed_snapshots(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check for agents that still write unsealed snapshots, or accept them from any writer of the store."""
    settings = await read_settings(reads, one)
    if settings.writes_unsealed:  # such agents also accept unsealed snapshots, regardless of `accepts_unsealed`
        message = "agents have the key and seal nothing: who reads the store reads memory, and who writes it owns nodes"
        remedy = "once all agents have the key, continue with docs/operations.md#begin-to-seal-in-a-cluster"
        return [Finding(CHECK, Level.WARN, message, remedy)]
    if not settings.accepts_unsealed:
        return []
    message = "agents accept snapshots that are not sealed: who writes to the store owns nodes"
    return [Finding(CHECK, Level.WARN, message, "unset storage.sealing.acceptUnsealed once older snapshots are gone")]
