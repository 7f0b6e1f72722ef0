"""Check the labels and annotations by which namespaces protect their pods: the API server accepts every value."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from cedana_sched.cli.cluster_reader import ClusterReader
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.release_settings import CheckedReleaseSettings, read_settings
from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, NAMESPACES
from cedana_sched.model.objects import names

CHECK: Final = "protected namespaces"


async def examine(reads: ClusterReader, one: Installation) -> list[Finding]:
    """Return a finding for each namespace that does not protect its pods as it is labelled, or one that all do."""
    settings = await read_settings(reads, one)
    labelled = [
        namespace.metadata
        for namespace in await reads.read_objects(NAMESPACES, labels=names.PROTECT, into=PartialObject)
    ]
    if not labelled:
        return [Finding(CHECK, Level.OK, f"no namespace has the label {names.PROTECT}")]
    policies = {policy.metadata.name for policy in await reads.read_objects(CHECKPOINT_POLICIES, into=PartialObject)}
    found = [found for one in labelled if (found := _namespace_finding(one, settings, policies)) is not None]
    return found or [Finding(CHECK, Level.OK, f"{len(labelled)} labelled namespaces count as they are written")]


def _namespace_finding(
    namespace: Metadata, settings: CheckedReleaseSettings, policies: Collection[str]
) -> Finding | None:
    label, policy = namespace.labels[names.PROTECT], namespace.annotations.get(names.POLICY)
    field = f"namespace {namespace.name} protects no pod: metadata.labels[{names.PROTECT}] is {label!r}"
    if label not in {"true", "false"}:
        return Finding(CHECK, Level.WARN, field, "write 'true', or remove the label")
    if label == "false":
        return None
    if "kubernetes" not in settings.adapters:
        remedy = "upgrade the release with --set kubernetes.enabled=true"
        return Finding(CHECK, Level.WARN, f"{field}, which counts only with the adapter kubernetes", remedy)
    if not settings.served.includes(namespace.name):
        return Finding(CHECK, Level.WARN, f"{field}, and excludedNamespaces excludes it", "remove it from one of them")
    if policy and policy not in policies:
        message = (
            f"new pods of namespace {namespace.name} are not protected: metadata.annotations[{names.POLICY}] is"
            f" {policy!r}, which is no CheckpointPolicy"
        )
        return Finding(
            CHECK, Level.FAIL, message, "name one of 'kubectl get checkpointpolicies', or remove the annotation"
        )
    return None
