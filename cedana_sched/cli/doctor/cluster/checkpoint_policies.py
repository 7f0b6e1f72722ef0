"""Check that every CheckpointPolicy is valid and in effect."""

from __future__ import annotations

from typing import Final

from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.cluster_reader import ClusterReader
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.resources import CHECKPOINT_POLICIES
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.checkpoint_policy import ineffective_fields, read_spec

CHECK: Final = "checkpoint policies"


async def examine(reads: ClusterReader) -> list[Finding]:
    """Return a finding for each policy that is invalid, or has fields that apply to no namespace."""
    try:
        there = await reads.read_objects(CHECKPOINT_POLICIES, into=CachedPolicy)
    except AbsentError:  # not installed, which other checks report
        there = ()
    found = [finding for one in there if (finding := _policy_finding(one.metadata.name, one.spec)) is not None]
    return found or [Finding(CHECK, Level.OK, f"{len(there)} count as they are written")]


def _policy_finding(name: str, body: Object) -> Finding | None:
    try:
        without = ineffective_fields(name, read_spec(name, body))
    except UsageError:
        says = f"CheckpointPolicy {name} cannot be read: no new pod that names it is protected"
        return Finding(CHECK, Level.FAIL, says, f"correct it: kubectl edit checkpointpolicy {name}")
    if not without:
        return None
    says = f"CheckpointPolicy {name} says {', '.join(without)}, which applies to no pod"
    return Finding(CHECK, Level.WARN, says, "write in its spec.allowedNamespaces for whom, or take it out")
