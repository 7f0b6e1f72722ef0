"""A policy opts in the pods that it selects: before the namespace's label, and of several the first by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from cedana_sched.adapter.conformance.stage import running_beside
from cedana_sched.eviction_holds.preemption_index import PreemptionIndex
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, NAMESPACES
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_kubernetes.adapter import KubernetesAdapter
from cedana_sched_kubernetes.job_admission import IGNORE_RULE
from cedana_sched_kubernetes.webhooks import JOBS, PODS, KubernetesWebhooks
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.schedulers import ReplicaAccess
from tests.unit.adapters.kubernetes.kubernetes_stage import NAMESPACE, KubernetesStage, owner

ON: Object = {"podSelectors": True}
MD = {"matchLabels": {"app": "md"}}
OF_MD: Object = {"app": "md"}
TEAM = {"matchExpressions": [{"key": "team", "operator": "In", "values": ["bio"]}]}


def pod(labels: Object | None = None, annotations: Object | None = None) -> Object:
    metadata = {"name": "md-1", "namespace": NAMESPACE, "labels": labels or OF_MD, "annotations": annotations or {}}
    owners = {"ownerReferences": [owner("ReplicaSet", "apps/v1")]}
    return {"metadata": metadata | owners, "spec": {"containers": []}}


def stage_with(policies: Object, labels: Object | None = None, settings: Object | None = None) -> KubernetesStage:
    stage = KubernetesStage()
    stage.settings = ON if settings is None else settings
    of_namespace = {names.POLICY: "of-namespace"}
    stage.api.put(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels or {}, "annotations": of_namespace}})
    for name, spec in policies.items():
        stage.api.put(CHECKPOINT_POLICIES, {"metadata": {"name": name}, "spec": spec})
    return stage


@asynccontextmanager
async def webhooks_over(stage: KubernetesStage) -> AsyncIterator[KubernetesWebhooks]:
    webhooks = KubernetesWebhooks.connect(ReplicaAccess(stage.api, PreemptionIndex(3_600), settings=stage.settings))
    async with running_beside(webhooks.run()):
        await stage.wait_until_reported()
        yield webhooks


async def answered(stage: KubernetesStage, body: Object, path: str = PODS) -> Answer:
    async with webhooks_over(stage) as webhooks:
        return await webhooks.handlers()[path](Request("1", NAMESPACE, object=body))


async def policy_given(stage: KubernetesStage, body: Object | None = None) -> str | None:
    """The policy that a pod gets from an admin; None if it is not protected."""
    body = pod() if body is None else body
    written = apply_json_patch(body, (await answered(stage, body)).patch)["metadata"]["annotations"]
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        past_the_webhook = dict(adapter.opt_in_annotations(body))
    assert past_the_webhook.items() <= written.items(), "a pod that no webhook has seen is opted in likewise"
    policy: str | None = written.get(names.QUEUE_POLICY)
    assert (names.ID in written) is (policy is not None)
    return policy


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({"podSelector": MD}, {}),
        ({"podSelector": MD, "namespaceSelector": TEAM}, {"team": "bio"}),
        ({"podSelector": {}, "namespaceSelector": {}}, {}),
        ({"podSelector": MD, "allowedNamespaces": {"from": "Names", "names": [NAMESPACE]}}, {}),
    ],
    ids=["labels", "labels of the namespace", "everything", "a namespace that may use it"],
)
async def test_selected_pod_gets_its_controllers_id_and_the_policy(spec: Object, labels: Object) -> None:
    assert await policy_given(stage_with({"saved": spec}, labels)) == "saved"


@pytest.mark.parametrize(
    ("spec", "labels"),
    [
        ({}, {}),
        ({"podSelector": {"matchLabels": {"app": "ml"}}}, {}),
        ({"podSelector": MD, "namespaceSelector": TEAM}, {"team": "ml"}),
        ({"podSelector": MD, "allowedNamespaces": {"from": "Names", "names": ["other"]}}, {}),
        ({"podSelector": {}}, {}),
    ],
    ids=["no selector", "other labels", "another namespace", "a namespace that may not use it", "invalid"],
)
async def test_pods_that_no_policy_selects_are_left_alone(spec: Object, labels: Object) -> None:
    stage = stage_with({"saved": spec}, labels)
    assert await policy_given(stage) is None
    assert (await answered(stage, pod())).patch == ()


async def test_selectors_have_no_effect_unless_they_are_enabled() -> None:
    assert await policy_given(stage_with({"saved": {"podSelector": MD}}, settings={})) is None


async def test_selecting_policy_precedes_the_label_of_the_namespace() -> None:
    labels = {names.PROTECT: "true"}
    stage = stage_with({"saved": {"podSelector": MD}, "of-namespace": {}}, labels)
    assert await policy_given(stage) == "saved"
    assert await policy_given(stage, pod({"app": "other"})) == "of-namespace"


@pytest.mark.parametrize(("at_creation", "now"), [("saved", "saved"), ("of-namespace", "of-namespace")])
async def test_pod_keeps_the_policy_that_selected_it(at_creation: str, now: str) -> None:
    stage = stage_with({"saved": {"podSelector": MD}}, {names.PROTECT: "true"})
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        body = pod({"app": "changed since"}, {names.QUEUE_POLICY: at_creation})
        assert adapter.queue_policy(msgspec.convert(body | {"spec": {}}, Pod)) == now


OTHERS: Object = {"otherLabels": ["theirs"], "otherSchedulers": ["batch"]}


@pytest.mark.parametrize(("labels", "scheduler"), [({"theirs": "x"}, ""), ({}, "batch")], ids=["label", "scheduler"])
@pytest.mark.parametrize("of_namespace", [True, False])
async def test_author_of_a_pod_of_another_adapter_cannot_displace_the_policy_of_the_namespace(
    labels: Object, scheduler: str, *, of_namespace: bool
) -> None:
    stage = stage_with(
        {"weak": {"podSelector": MD}}, {names.PROTECT: "true"} if of_namespace else {}, settings={**ON, **OTHERS}
    )
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        body = pod(labels, {names.QUEUE_POLICY: "weak"}) | {"spec": {"schedulerName": scheduler}}
        chosen = adapter.queue_policy(msgspec.convert(body, Pod))
    assert chosen == ("of-namespace" if of_namespace else None)


@pytest.mark.parametrize("annotations", [{}, {names.ID: "mine"}], ids=["without an id", "with an id"])
@pytest.mark.parametrize("written", ["saved", "no policy"])
async def test_author_of_a_pod_cannot_write_the_policy_of_a_queue(written: str, annotations: Object) -> None:
    body = pod({"app": "other"}, {**annotations, names.QUEUE_POLICY: written, "theirs": "x"})
    answer = await answered(stage_with({"saved": {"podSelector": MD}}), body)
    assert apply_json_patch(body, answer.patch)["metadata"]["annotations"] == {**annotations, "theirs": "x"}
    assert answer.decision == "unchosen"
    (warning,) = answer.warnings
    assert warning == (
        f"cedana: metadata.annotations[{names.QUEUE_POLICY}]: '{written}' is taken away: an admin's queue has it "
        f"(name a policy in {names.POLICY})"
    )


@pytest.mark.parametrize("annotations", [{}, {names.ID: "mine"}], ids=["without an id", "with an id"])
async def test_policy_that_an_admin_chose_replaces_the_authors(annotations: Object) -> None:
    body = pod(annotations={**annotations, names.QUEUE_POLICY: "weak"})
    stage = stage_with({"saved": {"podSelector": MD}, "weak": {"podSelector": {"matchLabels": {"app": "other"}}}})
    answer = await answered(stage, body)
    assert apply_json_patch(body, answer.patch)["metadata"]["annotations"][names.QUEUE_POLICY] == "saved"
    (warning,) = answer.warnings
    assert "'weak' is taken away" in warning


async def test_author_cannot_choose_for_a_namespace_that_names_no_policy_either() -> None:
    stage = stage_with({"weak": {"podSelector": {"matchLabels": {"app": "other"}}}})
    stage.api.put(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {names.PROTECT: "true"}}})
    body = pod(annotations={names.QUEUE_POLICY: "weak"})
    written = apply_json_patch(body, (await answered(stage, body)).patch)["metadata"]["annotations"]
    assert names.QUEUE_POLICY not in written
    assert names.ID in written


async def test_pods_without_a_controller_lose_it_as_well() -> None:
    body = pod(annotations={names.QUEUE_POLICY: "weak"})
    del body["metadata"]["ownerReferences"]
    answer = await answered(stage_with({"saved": {"podSelector": MD}}), body)
    assert (answer.decision, apply_json_patch(body, answer.patch)["metadata"]["annotations"]) == ("unchosen", {})


@pytest.mark.parametrize(("labels", "scheduler"), [({"theirs": "x"}, ""), ({}, "batch")], ids=["label", "scheduler"])
async def test_policy_of_another_adapters_queue_is_left_on_its_pods(labels: Object, scheduler: str) -> None:
    body = pod({**OF_MD, **labels}, {names.QUEUE_POLICY: "of-a-check"})
    body["spec"]["schedulerName"] = scheduler
    stage = stage_with({"saved": {"podSelector": MD}}, settings={**ON, **OTHERS})
    assert await answered(stage, body) == Answer("not-ours")


async def test_of_two_policies_the_first_by_name_applies_and_the_pods_author_is_told() -> None:
    stage = stage_with({"b": {"podSelector": MD}, "a": {"podSelector": MD}})
    (warning,) = (await answered(stage, pod())).warnings
    assert warning == (
        "cedana: policies a, b select the pod: 'a' applies, the first by name "
        "(have an admin narrow spec.podSelector of b)"
    )
    assert await policy_given(stage) == "a"


async def test_pod_with_an_id_of_its_own_keeps_it_and_gets_the_policy() -> None:
    body = pod(annotations={names.ID: "mine"})
    answer = await answered(stage_with({"saved": {"podSelector": MD}}), body)
    written = apply_json_patch(body, answer.patch)["metadata"]["annotations"]
    assert written == {names.ID: "mine", names.QUEUE_POLICY: "saved"}


async def test_pods_of_other_adapters_are_left_to_their_queues() -> None:
    stage = stage_with({"saved": {"podSelector": MD}}, settings={**ON, "otherLabels": ["theirs"]})
    assert await policy_given(stage, pod({**OF_MD, "theirs": "x"})) is None


async def test_running_pods_are_looked_at_again_when_a_policy_selects_more() -> None:
    stage = stage_with({})
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        told: list[str | None] = []
        adapter.on_more_opted_in(told.append)
        saved: Object = {"podSelector": MD}
        for spec in (saved, {**saved, "deadlineSeconds": 60}, {"deadlineSeconds": 60}):
            stage.api.put(CHECKPOINT_POLICIES, {"metadata": {"name": "saved"}, "spec": spec})
            await stage.wait_until_reported()
        assert told == [None]
        stage.api.remove(CHECKPOINT_POLICIES, "saved", None)
        await stage.wait_until_reported()
        assert dict(adapter.opt_in_annotations(pod())) == {}


async def test_pods_of_a_namespace_are_looked_at_again_when_its_labels_are_selected() -> None:
    of_team: Object = {"podSelector": MD, "namespaceSelector": TEAM}
    stage = stage_with({"saved": of_team})
    async with stage.adapter() as adapter:
        assert isinstance(adapter, KubernetesAdapter)
        told: list[str | None] = []
        await stage.wait_until_reported()
        adapter.on_more_opted_in(told.append)
        for labels in ({"stage": "test"}, {"stage": "test", "team": "ml"}, {"team": "bio"}, {"team": "bio", "a": "b"}):
            stage.api.merge(NAMESPACES, NAMESPACE, None, {"metadata": {"labels": labels}})
            await stage.wait_until_reported()
        assert told == [NAMESPACE]
        stage.api.put(NAMESPACES, {"metadata": {"name": "new"}})
        stage.api.put(NAMESPACES, {"metadata": {"name": "team", "labels": {"team": "bio"}}})
        stage.api.put(NAMESPACES, {"metadata": {"name": "protected", "labels": {names.PROTECT: "true"}}})
        await stage.wait_until_reported()
        assert told == [NAMESPACE, "team", "protected"]


def job(job_labels: Object | None = None, scheduler: str | None = None) -> Object:
    spec: Object = {"restartPolicy": "Never", "schedulerName": scheduler, "containers": []}
    template = {"metadata": {"labels": OF_MD}, "spec": spec}
    return {"metadata": {"labels": job_labels or {}}, "spec": {"template": template}}


@pytest.mark.parametrize("labels", [{}, {names.PROTECT: "true"}], ids=["by the policy", "by the namespace"])
async def test_job_whose_pods_an_admin_protects_gets_the_rule(labels: Object) -> None:
    stage = stage_with({} if labels else {"saved": {"podSelector": MD}}, labels)
    rule, _ = (await answered(stage, job(), JOBS[0])).patch
    assert rule["value"] == {"rules": [IGNORE_RULE]}


@pytest.mark.parametrize(
    "body", [job({"kueue.x-k8s.io/queue-name": "bio"}), job(scheduler="volcano")], ids=["Kueue", "Volcano"]
)
async def test_jobs_of_other_adapters_get_no_rule(body: Object) -> None:
    others = {"otherJobLabels": ["kueue.x-k8s.io/queue-name"], "otherSchedulers": ["volcano"]}
    stage = stage_with({"saved": {"podSelector": MD}}, {names.PROTECT: "true"}, {**ON, **others})
    assert await answered(stage, body, JOBS[0]) == Answer("not-ours")
