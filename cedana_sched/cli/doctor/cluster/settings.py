"""What a release was told by its chart, as far as the doctor judges it: the ConfigMap of its components."""

from __future__ import annotations

import msgspec

from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.reads import Reads
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.served import Served


class _Storage(msgspec.Struct, frozen=True, rename="camel"):
    accept_unsealed: bool = False
    write_unsealed: bool = False


class _Agent(msgspec.Struct, frozen=True):
    storage: _Storage = _Storage()


class _Coordinator(msgspec.Struct, frozen=True, rename="camel"):
    adapters: tuple[str, ...] = ()
    excluded_namespaces: tuple[str, ...] = ()


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class Settings(msgspec.Struct, frozen=True):
    """`adapters` are those that the coordinator runs.

    `accepts_unsealed`: agents continue what nobody has sealed; `writes_unsealed`: they have keys, and seal nothing.
    """

    adapters: frozenset[str]
    served: Served
    accepts_unsealed: bool
    writes_unsealed: bool


async def settings_of(reads: Reads, one: Installation) -> Settings:
    """What stands in its ConfigMap.

    Raises:
        CedanaSchedError: it is not there, or not as the chart writes it.
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
    served, storage = Served(frozenset(coordinator.excluded_namespaces)), agent.storage
    return Settings(frozenset(coordinator.adapters), served, storage.accept_unsealed, storage.write_unsealed)
