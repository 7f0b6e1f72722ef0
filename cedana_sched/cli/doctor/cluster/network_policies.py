"""Check that the chart's NetworkPolicies exist for every component."""

from __future__ import annotations

from typing import Final

from cedana_sched.cli.doctor.cluster.installation import COMPONENT, OURS, Installation
from cedana_sched.cli.doctor.cluster.reads import Reads, named
from cedana_sched.cli.doctor.findings import Finding, Level
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.resources import Resource

CHECK: Final = "network policies"
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
_DAEMON_SETS: Final = frozenset({"agent", "holds"})


async def examine(reads: Reads, one: Installation) -> list[Finding]:
    """Check for missing NetworkPolicies. Whether the CNI plugin enforces them is not visible in the API."""
    found = await reads.listed(NETWORK_POLICIES, one.namespace, labels=OURS, into=PartialObject)
    covered = {policy.metadata.labels.get(COMPONENT) for policy in found}
    if missing := {name for name in one.components | _DAEMON_SETS if name not in covered}:
        says = f"no NetworkPolicy says who may call {named(missing)}"
        return [Finding(CHECK, Level.WARN, says, "set networkPolicy.enabled of the chart, and upgrade")]
    return [Finding(CHECK, Level.OK, f"there is one for {named(one.components | _DAEMON_SETS)}")]
