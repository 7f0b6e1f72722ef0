"""Settings of a release that the doctor checks, from the ConfigMap that the chart writes for its components."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.served_namespaces import ServedNamespaces

NO_PROVIDER: Final = "none"
"""Value of the setting `provider` of agents: they read no provider's notices."""


class _Storage(msgspec.Struct, frozen=True, rename="camel"):
    accept_unsealed: bool = False
    write_unsealed: bool = False


class _Interruptions(msgspec.Struct, frozen=True):
    provider: str = NO_PROVIDER


class _Agent(msgspec.Struct, frozen=True):
    storage: _Storage = _Storage()
    interruptions: _Interruptions = _Interruptions()


class _KubernetesAdapter(msgspec.Struct, frozen=True, rename="camel"):
    pod_selectors: bool = False


class _AdapterSettings(msgspec.Struct, frozen=True):
    kubernetes: _KubernetesAdapter = _KubernetesAdapter()


class _Coordinator(msgspec.Struct, frozen=True, rename="camel"):
    adapters: tuple[str, ...] = ()
    excluded_namespaces: tuple[str, ...] = ()
    adapter_settings: _AdapterSettings = _AdapterSettings()


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class CheckedReleaseSettings(msgspec.Struct, frozen=True):
    """Settings of a release. `adapters` are those that the coordinator runs; `selects_pods`: policies opt in pods.

    `provider`: the cloud whose notices of interruption agents read, `NO_PROVIDER` or `AUTO`.
    `accepts_unsealed`: agents restore unsealed snapshots; `writes_unsealed`: agents have keys, and do not seal.
    """

    adapters: frozenset[str]
    served: ServedNamespaces
    accepts_unsealed: bool
    writes_unsealed: bool
    selects_pods: bool
    provider: str


async def read_settings(reads: ClusterReader, one: Installation) -> CheckedReleaseSettings:
    """Return the settings in a release's ConfigMap.

    Raises:
        CedanaSchedError: the ConfigMap does not exist, or is invalid.
    """
    found = await reads.find(CONFIG_MAPS, one.name, one.namespace, into=_ConfigMap)
    remedy = "upgrade the release, which writes it again"
    if found is None:
        raise CedanaSchedError(f"there is no ConfigMap {one.name} in namespace {one.namespace}", remedy=remedy)
    try:
        coordinator = msgspec.json.decode(found.data.get("coordinator.json", ""), type=_Coordinator)
        agent = msgspec.json.decode(found.data.get("agent.json", ""), type=_Agent)
    except (ValueError, RecursionError) as error:
        raise CedanaSchedError(f"ConfigMap {one.name} cannot be read: {error}", remedy=remedy) from error
    served, storage = ServedNamespaces(frozenset(coordinator.excluded_namespaces)), agent.storage
    return CheckedReleaseSettings(
        frozenset(coordinator.adapters),
        served,
        storage.accept_unsealed,
        storage.write_unsealed,
        coordinator.adapter_settings.kubernetes.pod_selectors,
        agent.interruptions.provider,
    )
