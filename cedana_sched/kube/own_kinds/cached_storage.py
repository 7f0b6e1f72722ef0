"""CheckpointStorages. Their specs are parsed by `model/objects/checkpoint_storage` where they are used."""

from __future__ import annotations

import msgspec

from cedana_sched.kube.builtin_kinds import Condition, Metadata
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.parts import PartialStruct


class StorageStatus(PartialStruct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class CachedStorage(PartialStruct, frozen=True):
    metadata: Metadata
    spec: Object = msgspec.field(default_factory=dict)
    status: StorageStatus = StorageStatus()
