"""Whether the doctor names namespaces whose label or annotation does not protect what its author meant."""

from __future__ import annotations

import json

import pytest

from cedana_sched.cli.doctor.cluster.protected_namespaces import examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CONFIG_MAPS, NAMESPACES
from cedana_sched.model.objects import names

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster

SAYS = f"namespace lab protects no pod: metadata.labels[{names.PROTECT}] is"


def cluster_with(
    label: str | None, policy: str | None = None, *adapters: str, excluded: str = "kube-system"
) -> Cluster:
    coordinator = {"adapters": adapters, "excludedNamespaces": [excluded]}
    data = {"coordinator.json": json.dumps(coordinator), "agent.json": "{}"}
    labels = {} if label is None else {names.PROTECT: label}
    metadata: Object = {"name": "lab", "labels": labels, "annotations": {names.POLICY: policy} if policy else {}}
    known: Object = {"metadata": {"name": "strict"}, "spec": {}}
    cluster = Cluster().put(CONFIG_MAPS, {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data})
    return cluster.put(NAMESPACES, {"metadata": metadata}).put(CHECKPOINT_POLICIES, known)


@pytest.mark.parametrize("policy", [None, "strict"])
async def test_namespace_that_protects_its_pods_counts(policy: str | None) -> None:
    found = await cluster_with("true", policy, "kubernetes").findings(examine)
    assert found == ["ok 1 labelled namespaces count as they are written"]


@pytest.mark.parametrize("label", ["True", "yes", ""])
async def test_label_of_another_value_protects_nothing(label: str) -> None:
    assert await cluster_with(label, None, "kubernetes").findings(examine) == [f"warn {SAYS} {label!r}"]


async def test_namespace_that_says_false_is_meant_so() -> None:
    assert (await cluster_with("false").findings(examine))[0].startswith("ok")


async def test_label_without_the_adapter_protects_nothing() -> None:
    (finding,) = await cluster_with("true", None, "kueue").findings(examine)
    assert finding == f"warn {SAYS} 'true', which counts only with the adapter kubernetes"


async def test_label_of_an_excluded_namespace_protects_nothing() -> None:
    (finding,) = await cluster_with("true", None, "kubernetes", excluded="lab").findings(examine)
    assert finding == f"warn {SAYS} 'true', and excludedNamespaces excludes it"


async def test_policy_that_does_not_exist_leaves_pods_unprotected() -> None:
    (finding,) = await cluster_with("true", "strikt", "kubernetes").findings(examine)
    assert finding == (
        f"fail new pods of namespace lab are not protected: metadata.annotations[{names.POLICY}] is 'strikt', which is"
        " no CheckpointPolicy"
    )


async def test_namespaces_without_the_label_are_well() -> None:
    assert await cluster_with(None).findings(examine) == ["ok no namespace has the label sched.cedana.ai/protect"]
