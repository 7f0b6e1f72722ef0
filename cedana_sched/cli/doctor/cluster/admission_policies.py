"""Check that the chart's ValidatingAdmissionPolicies are in force; they isolate tenants and the product's tokens."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import OURS, Installation
from cedana_sched.cli.doctor.cluster.release_settings import read_settings
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import Resource

CHECK: Final = "admission policies"
_GROUP: Final = "admissionregistration.k8s.io/v1"
POLICIES: Final = Resource(_GROUP, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False)
BINDINGS: Final = Resource(
    _GROUP, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", namespaced=False
)
KEPT: Final = {
    "agent": "a stolen token of an agent writes about every node",
    "narrowed-deployment": "a stolen token of ours changes images of the coordinator while it is uninstalled",
    "narrowed-events": "a stolen token of ours writes Events in the name of others",
    "narrowed-evictions": "a stolen token of ours evicts the successors of pods, and pods of excluded namespaces",
    "narrowed-configurations": "a stolen token of ours changes what webhooks are called for",
    "narrowed-metadata": "a stolen token of ours changes Jobs and nodes",
    "narrowed-pods": "a stolen token of ours changes images of pods",
    "narrowed-secrets": "a stolen token of ours makes Secrets that hold tokens of other accounts",
    "narrowed-settings": "a stolen token of ours deletes policies and storages of others while it is uninstalled",
    "records": "tenants forge orders to the agents, which are root",
    "reserved-bindings": "tenants write marks of ours on pods that they bind",
    "reserved-marks": "tenants write marks of ours on pods that run",
    "reserved-names": "tenants keep containers out of a snapshot by a name of ours",
}
"""The attack that each policy of the chart prevents, by the suffix of the policy's name."""
KEPT_OF_KUEUE: Final = {
    "narrowed-checks": "a stolen token of ours passes the AdmissionChecks of others",
    "narrowed-kueue": "a stolen token of ours admits Workloads, and changes quotas while it is uninstalled",
    "kueue-suspended-at": "a user who may write an object that Kueue suspends holds its evictions for ever",
}
"""The same for policies that exist only with Kueue's adapter."""


class _PolicySpec(msgspec.Struct, frozen=True, rename="camel"):
    failure_policy: str = "Fail"


class _Policy(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _PolicySpec = _PolicySpec()


class _BindingSpec(msgspec.Struct, frozen=True, rename="camel"):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()


class _Binding(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _BindingSpec = _BindingSpec()


async def examine(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Return a finding for each policy that is not in force.

    Raises:
        CedanaSchedError: the settings of the release are missing or invalid.
    """
    has_kueue = "kueue" in (await read_settings(reads, one)).adapters
    kept = KEPT | KEPT_OF_KUEUE if has_kueue else KEPT
    there = await reads.read_objects(POLICIES, labels=OURS, into=_Policy)
    bound = await reads.read_objects(BINDINGS, labels=OURS, into=_Binding)
    known = {each.metadata.name for each in there}
    failing = {each.metadata.name for each in there if each.spec.failure_policy == "Fail"}
    denying = {each.spec.policy_name for each in bound if "Deny" in each.spec.validation_actions}
    found: list[Finding] = []
    for ending, otherwise in kept.items():
        name = f"{one.name}-{ending}"
        if name not in known:
            found.append(_failed_finding(f"there is no ValidatingAdmissionPolicy {name}: {otherwise}"))
        elif name not in denying:
            found.append(_failed_finding(f"no binding has {name} deny anything: {otherwise}"))
        elif name not in failing:
            found.append(_failed_finding(f"{name} lets through what it cannot judge: {otherwise}"))
    return found or [Finding(CHECK, Level.OK, f"all deny: {summarize_names(kept)}")]


def _failed_finding(message: str) -> Finding:
    return Finding(CHECK, Level.FAIL, message, "upgrade the release, which writes it again")
