"""CheckpointPolicies. Their specs are parsed by `model/objects/checkpoint_policy` where they are used.

So a policy that cannot be parsed is cached by name, and its users get the reason.
"""

from __future__ import annotations

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.parts import PartialStruct


class CachedPolicy(PartialStruct, frozen=True):
    metadata: Metadata
    spec: Object = msgspec.field(default_factory=dict)
