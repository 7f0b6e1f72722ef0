"""A namespace protects its pods, by the policy that an admin has annotated."""

from __future__ import annotations

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import NAMESPACES
from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import REVISION
from cedana_sched_kubernetes.adapter import KubernetesAdapter
from tests.unit.adapters.kubernetes.kubernetes_stage import NAMESPACE, KubernetesStage, owner


async def given_to(pod: Object, settings: Object | None = None, *, protects: str = "true") -> dict[str, str]:
    """The annotations for a pod without an id."""
    stage = KubernetesStage()
    stage.settings = settings or {}
    metadata = {"name": NAMESPACE, "labels": {names.PROTECT: protects}, "annotations": {names.POLICY: "strict"}}
    stage.api.put(NAMESPACES, {"metadata": metadata})
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        return dict(adapter.opt_in_annotations(pod))


def pod(kind: str = "ReplicaSet", **labels: str) -> Object:
    metadata = {"name": "md-1", "namespace": NAMESPACE, "labels": labels}
    return {"metadata": {**metadata, "ownerReferences": [owner(kind, "apps/v1")]}, "spec": {"containers": []}}


async def test_pod_gets_its_controllers_id_and_the_policy_of_the_namespace() -> None:
    given = await given_to(pod())
    assert given == {
        names.ID: "md-job-uid",
        names.DERIVED_ID: "true",
        names.POLICY: "strict",
        names.QUEUE_POLICY: "strict",
    }


async def test_pods_of_another_template_of_a_stateful_set_have_another_id() -> None:
    ids = {(await given_to(pod("StatefulSet", **{REVISION: revision})))[names.ID] for revision in ("a", "b")}
    assert len(ids) == 2


@pytest.mark.parametrize("protects", ["false", "True", ""])
async def test_other_namespaces_give_nothing(protects: str) -> None:
    assert await given_to(pod(), protects=protects) == {}


async def test_pods_of_other_adapters_get_nothing() -> None:
    assert await given_to(pod(theirs="x"), {"otherLabels": ["theirs"]}) == {}


async def test_no_label_of_a_pod_escapes_the_policy_of_its_namespace() -> None:
    stage = KubernetesStage()
    stage.settings = {"otherLabels": ["theirs"]}
    metadata = {"name": NAMESPACE, "labels": {names.PROTECT: "true"}, "annotations": {names.POLICY: "strict"}}
    stage.api.put(NAMESPACES, {"metadata": metadata})
    stage.put_pod("md-0", labels={"theirs": "x"})
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        (body,) = (one for one in stage.api.objects.values() if one["metadata"]["name"] == "md-0")
        assert adapter.queue_policy(msgspec.convert(body, Pod)) == "strict"
