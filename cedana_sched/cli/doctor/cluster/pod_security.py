"""Checks of Pod Security: the product's namespace must allow privileged pods, and tenants' namespaces should not.

docs/security.md describes the risks of privileged pods and of pods with `hostNetwork`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import OURS, Installation
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.resources import NAMESPACES, PODS, UNFINISHED_PODS
from cedana_sched.model.objects.names import PROTECTED

CHECK: Final = "pod security"
ENFORCE: Final = register_cached_key("pod-security.kubernetes.io/enforce")
_NARROW: Final = frozenset({"baseline", "restricted"})


class _NamespaceMetadata(msgspec.Struct, frozen=True):
    namespace: str = ""


class _PodNamespace(msgspec.Struct, frozen=True):
    """A pod, decoded only as far as its namespace, because there may be many thousands."""

    metadata: _NamespaceMetadata


async def check_product_namespace(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check that the product's namespace allows the agents."""
    found = await reads.find(NAMESPACES, one.namespace, into=PartialObject)
    level = found.metadata.labels.get(ENFORCE) if found else None
    remedy = f"kubectl label --overwrite namespace {one.namespace} {ENFORCE}=privileged"
    if level in _NARROW:
        message = f"namespace {one.namespace} enforces {level}: no new agent starts, for agents are privileged"
        return [Finding(CHECK, Level.FAIL, message, remedy)]
    if level is None:
        message = (
            f"namespace {one.namespace} has no label {ENFORCE}: agents start only where the cluster's default lets them"
        )
        return [Finding(CHECK, Level.WARN, message, remedy)]
    return [Finding(CHECK, Level.OK, f"namespace {one.namespace} lets the agents be {level}")]


async def check_foreign_pods(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Check for foreign pods in the product's namespace, which allows privileged pods and has the product's Secrets."""
    selector = OURS.replace("=", "!=")
    pods = await reads.read_objects(PODS, one.namespace, labels=selector, fields=UNFINISHED_PODS, into=PartialObject)
    if not pods:
        return [Finding(CHECK, Level.OK, f"no other pods run in namespace {one.namespace}")]
    message = f"pods of others run in namespace {one.namespace}, which holds our Secrets: {_pod_names(pods)}"
    return [Finding(CHECK, Level.WARN, message, "give them a namespace of their own")]


async def check_tenant_namespaces(reads: ClusterReader) -> list[Finding]:
    """Check that namespaces with protected pods do not allow privileged pods."""
    selector = f"{PROTECTED}=true"
    pods = await reads.read_objects(PODS, labels=selector, fields=UNFINISHED_PODS, into=_PodNamespace)
    used = {pod.metadata.namespace for pod in pods}
    if not used:
        return [Finding(CHECK, Level.OK, "no protected pods run")]
    known = await reads.read_objects(NAMESPACES, into=PartialObject)
    wide = used - {one.metadata.name for one in known if one.metadata.labels.get(ENFORCE) in _NARROW}
    if not wide:
        return [Finding(CHECK, Level.OK, "all namespaces with protected pods enforce baseline or restricted")]
    message = (
        f"namespaces with protected pods enforce neither baseline nor restricted: {summarize_names(wide)}; pods may use"
        " hostNetwork and hostPath, and be privileged there, if nothing else forbids it"
    )
    remedy = f"label them {ENFORCE}=baseline; their pods get no preStop hook then: see docs/kubernetes.md#opt-in"
    return [Finding(CHECK, Level.WARN, message, remedy)]


def _pod_names(pods: tuple[PartialObject, ...]) -> str:
    return summarize_names(pod.metadata.name for pod in pods)
