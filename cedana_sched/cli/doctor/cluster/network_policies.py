"""Check that the chart's NetworkPolicies exist for every component."""

from __future__ import annotations

from typing import Final

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import COMPONENT, OURS, Installation
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.resources import Resource

CHECK: Final = "network policies"
NETWORK_POLICIES: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
_DAEMON_SETS: Final = frozenset({"agent", "prestop-proxy"})


async def examine(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check for missing NetworkPolicies. Whether the CNI plugin enforces them is not visible in the API."""
    found = await reads.read_objects(NETWORK_POLICIES, one.namespace, labels=OURS, into=PartialObject)
    covered = {policy.metadata.labels.get(COMPONENT) for policy in found}
    if missing := {name for name in one.deployed_components | _DAEMON_SETS if name not in covered}:
        message = f"no NetworkPolicy says who may call {summarize_names(missing)}"
        return [Finding(CHECK, Level.WARN, message, "set networkPolicy.enabled of the chart, and upgrade")]
    return [Finding(CHECK, Level.OK, f"there is one for {summarize_names(one.deployed_components | _DAEMON_SETS)}")]
