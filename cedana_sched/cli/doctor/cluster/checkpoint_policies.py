"""Check that every CheckpointPolicy is valid and in effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.release_settings import read_settings
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.resources import CHECKPOINT_POLICIES
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.checkpoint_policy import ineffective_fields, read_spec
from cedana_sched.model.objects.field_names import api_name

CHECK: Final = "checkpoint policies"
_POD_SELECTOR: Final = api_name("pod_selector")


async def examine(reads: ClusterReader) -> list[Finding]:
    """Return a finding for each policy that is invalid, or has fields that apply to no namespace."""
    there = await _read_policies(reads)
    found = [finding for one in there if (finding := _policy_finding(one.metadata.name, one.spec)) is not None]
    return found or [Finding(CHECK, Level.OK, f"{len(there)} count as they are written")]


async def check_selectors_count(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Return a finding for each policy that selects pods although the release opts in none by policies."""
    if (await read_settings(reads, one)).selects_pods:
        return []
    remedy = "upgrade the release with --set kubernetes.enabled=true --set kubernetes.podSelectors=true"
    return [
        Finding(
            CHECK,
            Level.WARN,
            f"CheckpointPolicy {policy.metadata.name} has a podSelector, which opts in no pod",
            remedy,
        )
        for policy in await _read_policies(reads)
        if policy.spec.get(_POD_SELECTOR) is not None
    ]


async def _read_policies(reads: ClusterReader) -> Sequence[CachedPolicy]:
    try:
        return await reads.read_objects(CHECKPOINT_POLICIES, into=CachedPolicy)
    except AbsentError:  # not installed, which other checks report
        return ()


def _policy_finding(name: str, body: Object) -> Finding | None:
    try:
        without = ineffective_fields(name, read_spec(name, body))
    except UsageError:
        message = f"CheckpointPolicy {name} cannot be read: no new pod that names it is protected"
        return Finding(CHECK, Level.FAIL, message, f"correct it: kubectl edit checkpointpolicy {name}")
    if not without:
        return None
    message = f"CheckpointPolicy {name} says {', '.join(without)}, which applies to no pod"
    return Finding(CHECK, Level.WARN, message, "write in its spec.allowedNamespaces for whom, or take it out")
