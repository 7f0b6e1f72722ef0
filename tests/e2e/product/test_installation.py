"""The product installs as its chart says, every component becomes ready, and an upgrade disturbs nothing."""

from __future__ import annotations

import base64

import pytest
from kubernetes_asyncio.client import ApiException

from cedana_sched.component.callers import secret_segment_of
from cedana_sched.model.objects.names import API_VERSION, GROUP, NODE_PREPARED, RUNTIME_CLASS
from cedana_sched_webhooks.registrations import PODS, STATUSES
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for, wait_for_all
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.chart.listed_rights import COMPONENTS, expected, listed
from tests.e2e.product.installation import AGENT, COORDINATOR, WEBHOOKS, Product
from tests.e2e.product.rendering import RELEASE

_WEBHOOKS = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", RELEASE)


async def test_every_component_becomes_ready(installed: Product, api: Api, cluster: Cluster) -> None:
    found = await api.objects("v1", "Pod", installed.namespace)
    pods = [one for one in found if "deletionTimestamp" not in one["metadata"]]  # of an earlier rollout
    components = [one["metadata"]["labels"]["app.kubernetes.io/component"] for one in pods]
    assert components.count("coordinator") == components.count("webhooks") == 2
    assert components.count("agent") == len(cluster.nodes)
    assert all(map(has_condition("Ready"), pods))
    for name in (COORDINATOR, WEBHOOKS):
        await wait_for(api, "apps/v1", "Deployment", name, has_condition("Available"), namespace=installed.namespace)
    assert await api.get("apps/v1", "DaemonSet", AGENT, installed.namespace)


async def test_one_coordinator_leads(installed: Product, api: Api) -> None:
    (lease,) = await api.objects("coordination.k8s.io/v1", "Lease", installed.namespace)
    assert lease["spec"]["holderIdentity"]


async def test_nodes_say_that_they_can_dump_and_continue(installed: Product, api: Api, cluster: Cluster) -> None:
    await wait_for_all(
        api, "v1", "Node", lambda nodes: len(nodes) == len(cluster.nodes), selector=f"{NODE_PREPARED}=true", within=60
    )


async def test_the_api_server_trusts_the_webhooks(installed: Product, api: Api) -> None:
    configuration = await wait_for(
        api,
        *_WEBHOOKS,
        lambda body: all(webhook["clientConfig"].get("caBundle") for webhook in body["webhooks"]),
    )
    secret = await api.get("v1", "Secret", f"{RELEASE}-webhooks", installed.namespace)
    known = base64.b64decode(secret["data"]["callers.key"]).decode()
    told = {webhook["clientConfig"]["service"]["path"] for webhook in configuration["webhooks"]}
    assert f"/{secret_segment_of(known, PODS)}{PODS}" in told
    segments = {path.split("/")[1] for path in told}
    assert len(segments) == len(told), "each has one of its own"
    assert known not in segments
    bundle = base64.b64decode(configuration["webhooks"][0]["clientConfig"]["caBundle"])
    assert bundle.startswith(b"-----BEGIN CERTIFICATE-----")


async def test_nobody_but_the_api_server_is_answered_by_the_webhooks(installed: Product, api: Api) -> None:
    """The API server's proxy brings us there as any pod would come."""
    service = f"/api/v1/namespaces/{installed.namespace}/services/https:{WEBHOOKS}:443/proxy"
    secret = await api.get("v1", "Secret", WEBHOOKS, installed.namespace)
    known = base64.b64decode(secret["data"]["callers.key"]).decode()
    segment = secret_segment_of(known, PODS)
    review = {"request": {"uid": "1", "namespace": "lab", "object": pod("x", container("x"))}}
    for stranger in ("", f"/{segment[:-1]}", f"/{'0' * len(segment)}"):
        for path in (PODS, STATUSES):
            with pytest.raises(ApiException) as caught:
                await api.call("POST", f"{service}{stranger}{path}", body=review)
            assert caught.value.status == 404
    with pytest.raises(ApiException) as caught:
        await api.call("POST", f"{service}/{segment}{STATUSES}", body=review)
    assert caught.value.status == 404, "the segment of another path"
    assert (await api.call("POST", f"{service}/{segment}{PODS}", body=review))["response"]["allowed"]


async def test_nobody_reads_metrics_without_a_token(installed: Product, api: Api) -> None:
    service = f"/api/v1/namespaces/{installed.namespace}/services/{WEBHOOKS}:operations/proxy"
    with pytest.raises(ApiException) as caught:
        await api.call("GET", f"{service}/metrics")  # the proxy keeps our own credentials to itself
    assert caught.value.status == 401


@pytest.mark.any_shape
@pytest.mark.parametrize("component", [name for name, one in COMPONENTS.items() if not one.is_hook])
async def test_the_api_server_lets_each_component_do_what_is_expected(
    installed: Product, cluster: Cluster, component: str
) -> None:
    """A binding that the chart does not know would show here alone."""
    await installed.ensure()
    wanted = expected(component, options=())
    found = await listed(cluster, COMPONENTS[component].account)
    assert found.beside(await listed(cluster, "nobody"), wanted).text() == wanted.text()


@pytest.mark.exhaustive  # there is one in the middle of a hold each time
async def test_an_upgrade_changes_what_it_says_and_nothing_else(installed: Product, api: Api) -> None:
    before = await api.get(*_WEBHOOKS)
    await installed.install(policy={"spec": {"deadlineSeconds": 45}})
    policy = await api.get(API_VERSION, "CheckpointPolicy", "default")
    assert policy["spec"]["deadlineSeconds"] == 45
    assert _bundles(await api.get(*_WEBHOOKS)) <= _bundles(before), "who trusts the webhooks goes on to"


@pytest.mark.any_shape
async def test_runtime_handlers_that_others_add_later_can_be_used(
    installed: Product, api: Api, cluster: Cluster, namespace: Namespace, toolbox: str
) -> None:
    name = "somebody-elses"
    *_, node = cluster.nodes.values()
    await node.add_runtime_handler(name, (await node.run("sh", "-c", "command -v runc")).strip())
    runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
    await api.apply({**runtime_class, "handler": name})
    try:
        sleeping = container(toolbox, "sleep", "100")
        await namespace.apply(pod("theirs", sleeping, nodeName=node.name, runtimeClassName=name))
        await namespace.ready("theirs", within=120)
        await namespace.apply(pod("ours", sleeping, nodeName=node.name, runtimeClassName=RUNTIME_CLASS))
        await namespace.ready("ours")
    finally:
        await api.delete("node.k8s.io/v1", "RuntimeClass", name)


def _bundles(configuration: Object) -> set[tuple[str, str, str]]:
    clients = [(webhook["name"], webhook["clientConfig"]) for webhook in configuration["webhooks"]]
    return {(name, told["caBundle"], told["service"]["path"]) for name, told in clients}


@pytest.mark.exhaustive  # likewise
@pytest.mark.any_shape
async def test_what_is_uninstalled_is_gone_but_for_what_people_made(installed: Product, api: Api) -> None:
    made = await api.apply(_of_a_person())
    kinds = await _kinds(api)
    await installed.uninstall()
    try:
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            found = await api.objects("admissionregistration.k8s.io/v1", kind)
            assert RELEASE not in {body["metadata"]["name"] for body in found}
        assert await api.objects("v1", "Node", selector=NODE_PREPARED) == []
        assert kinds
        assert await _kinds(api) == kinds, "the kinds stay, and with them what was recorded"
        kept = await api.get(API_VERSION, "CheckpointPolicy", made["metadata"]["name"])
        assert kept["metadata"]["uid"] == made["metadata"]["uid"]
        assert kept["spec"] == made["spec"]
    finally:
        await api.delete(API_VERSION, "CheckpointPolicy", made["metadata"]["name"])


def _of_a_person() -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": "CheckpointPolicy",
        "metadata": {"name": "somebodys"},
        "spec": {"deadlineSeconds": 45},
    }


async def _kinds(api: Api) -> set[tuple[str, str]]:
    """Our kinds; one that was deleted and defined anew, without its objects, has another uid."""
    found = await api.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    return {(body["metadata"]["name"], body["metadata"]["uid"]) for body in found if body["spec"]["group"] == GROUP}
