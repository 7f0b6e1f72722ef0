"""An agent's token is good for its own node only, and there only for what an agent writes.

The rights and the policy are the chart's own, under another name, so that nothing has to run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, NODE, NODE_READY
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.rendering import named, of_kind, render

pytestmark = [pytest.mark.any_shape, pytest.mark.usefixtures("kinds")]

KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
POLICY = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
NODE_CLAIM = "authentication.kubernetes.io/node-name"
POD_UID = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
NOW = "2026-11-21T12:00:00.000000Z"


class Agent:
    """Whoever has the token of the agent of a node."""

    def __init__(self, namespace: Namespace, account: str, node: str) -> None:
        self._namespace = namespace
        self._who = [
            f"--as=system:serviceaccount:{namespace.name}:{account}",
            "--as-group=system:serviceaccounts",
            "--as-group=system:authenticated",
            *([f"--as-user-extra={NODE_CLAIM}={node}"] if node else []),
        ]

    async def patches(self, *what: str, **patch: object) -> None:
        await self._namespace.kubectl("patch", *what, "--type=merge", f"--patch={json.dumps(patch)}", *self._who)

    async def is_refused(self, *what: str, **patch: object) -> str:
        with pytest.raises(ClusterError) as caught:
            await self.patches(*what, **patch)
        return str(caught.value)


@pytest_asyncio.fixture(loop_scope="session")
async def account(namespace: Namespace, api: Api, helm: Binaries) -> AsyncIterator[str]:
    """The agent's ServiceAccount, with the rights that the chart gives it."""
    fullname = f"rights-{namespace.name[-5:]}"
    told = {"storage": {"posix": {"path": "/x"}}, "fullnameOverride": fullname}
    rendered = await render(helm, told, namespace=namespace.name)
    name = f"{fullname}-agent"
    bodies = [body for body in of_kind(rendered, *KINDS, *POLICY) if body["metadata"]["name"] == name]
    assert len(bodies) == len(KINDS) + len(POLICY)
    try:
        for body in bodies:
            await api.apply(body, namespace.name)
        await namespace.apply(checkpoint("probe"))
        stranger, probe = Agent(namespace, name, "nowhere"), ("cckpt/probe", "--subresource=status", "--dry-run=server")
        await wait_until_refused(
            lambda: stranger.patches(*probe, status={"deadline": NOW}), "has nothing to write about node"
        )
        yield name
    finally:
        for body in bodies:
            await api.delete(body["apiVersion"], body["kind"], name, namespace.name)


def checkpoint(name: str, node: str = "gpu-3") -> Object:
    spec = {
        "uid": name, "identity": {"id": "md-run"}, "pod": {"name": "md-run-0", "uid": POD_UID, "nodeName": node},
        "adapter": "kueue", "hold": "h-1", "reason": "InCohortReclamation", "createdAt": NOW,
    }  # fmt: skip
    metadata = {"name": name, "labels": {NODE: node}}
    return {"apiVersion": API_VERSION, "kind": "Checkpoint", "metadata": metadata, "spec": spec}


ANSWER = {"answer": {"number": 1, "outcome": {"type": "Frozen"}}, "transfer": {"readBytes": 1}}


async def test_it_answers_orders_of_its_own_node_only(namespace: Namespace, account: str) -> None:
    await namespace.apply(checkpoint("ours"), checkpoint("theirs", "gpu-4"))
    status = {"step": "Freezing", "phase": "Pending", "deadline": NOW, "order": {"number": 1, "order": {}}}
    for name in ("ours", "theirs"):
        await namespace.api.patch(
            API_VERSION, "Checkpoint", name, {"status": status}, namespace.name, subresource="status"
        )
    agent = Agent(namespace, account, "gpu-3")
    await agent.patches("cckpt/ours", "--subresource=status", status=ANSWER)
    written = (await namespace.get(API_VERSION, "Checkpoint", "ours"))["status"]
    assert written["answer"]["number"] == 1
    assert written["step"] == "Freezing"
    said = await agent.is_refused("cckpt/theirs", "--subresource=status", status=ANSWER)
    assert "the agent of node gpu-3 has nothing to write about node gpu-4" in said
    for wrong in ({"step": "Ready"}, {"message": "me"}, {"phase": None}):
        said = await agent.is_refused("cckpt/ours", "--subresource=status", status=wrong)
        assert "status.answer, status.transfer and status.beginsAgain only" in said
    assert "cannot patch resource" in await agent.is_refused("cckpt/ours", spec={"adapter": "me"})
    assert "cannot patch resource" in await agent.is_refused("cckpt/ours", metadata={"labels": {"a": "b"}})


async def test_it_tells_of_pods_that_begin_again_on_its_own_node_only(namespace: Namespace, account: str) -> None:
    for name, node in (("ours", "gpu-3"), ("theirs", "gpu-4")):
        made = checkpoint(name, node)
        spec = {key: made["spec"][key] for key in ("uid", "identity", "pod", "adapter", "createdAt")}
        await namespace.apply({**made, "kind": "Restore", "spec": spec})
        status = {"status": {"step": "Running", "deadline": NOW}}
        await namespace.api.patch(API_VERSION, "Restore", name, status, namespace.name, subresource="status")
    agent = Agent(namespace, account, "gpu-3")
    await agent.patches("crst/ours", "--subresource=status", status={"beginsAgain": "c2"})
    written = (await namespace.get(API_VERSION, "Restore", "ours"))["status"]
    assert (written["beginsAgain"], written["step"]) == ("c2", "Running")
    said = await agent.is_refused("crst/theirs", "--subresource=status", status={"beginsAgain": "c2"})
    assert "the agent of node gpu-3 has nothing to write about node gpu-4" in said
    await agent.is_refused("crst/ours", "--subresource=status", status={"beginning": 1})


async def test_it_answers_what_is_addressed_to_its_node_whoever_took_it(namespace: Namespace, account: str) -> None:
    """The snapshot of a node that is gone is removed by another one's agent."""
    lent = checkpoint("lent", "gpu-4")
    lent["metadata"]["labels"][NODE] = "gpu-3"
    await namespace.apply(lent)
    status = {"status": {"step": "Ready", "phase": "Ready", "deadline": NOW}}
    await namespace.api.patch(API_VERSION, "Checkpoint", "lent", status, namespace.name, subresource="status")
    await Agent(namespace, account, "gpu-3").patches("cckpt/lent", "--subresource=status", status=ANSWER)
    taker = Agent(namespace, account, "gpu-4")
    assert "nothing to write about node gpu-3" in await taker.is_refused(
        "cckpt/lent", "--subresource=status", status=ANSWER, metadata={"labels": {NODE: "gpu-4"}}
    )


async def test_a_token_without_a_node_is_good_for_nothing(namespace: Namespace, account: str) -> None:
    await namespace.apply(checkpoint("ours"))
    nobody = Agent(namespace, account, "")
    said = await nobody.is_refused("cckpt/ours", "--subresource=status", status={"deadline": NOW, **ANSWER})
    assert "nothing to write" in said


async def test_it_says_of_its_own_node_what_it_can_do(
    namespace: Namespace, cluster: Cluster, api: Api, account: str
) -> None:
    node = next(iter(cluster.nodes))
    agent = Agent(namespace, account, node)
    before = (await api.get("v1", "Node", node))["metadata"]
    written = {"labels": {f"{NODE_READY}-test": "true"}, "annotations": {f"{NODE_READY}-test": "{}"}}
    await agent.patches(f"node/{node}", metadata=written)
    try:
        for wrong in (
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "me"}}},
            {"metadata": {"labels": {next(iter(before["labels"])): None}}},
            {"spec": {"unschedulable": True}},
        ):
            assert "on its node only" in await agent.is_refused(f"node/{node}", **wrong)
        stranger = Agent(namespace, account, "elsewhere")
        assert "nothing to write" in await stranger.is_refused(f"node/{node}", metadata=written)
    finally:
        gone = {kind: {f"{NODE_READY}-test": None} for kind in ("labels", "annotations")}
        await api.patch("v1", "Node", node, {"metadata": gone})


async def test_the_token_of_a_pod_names_its_node(
    namespace: Namespace, account: str, toolbox: str, helm: Binaries
) -> None:
    """What the tests above pretend is what an API server really makes of a pod's token."""
    told = {"storage": {"posix": {"path": "/x"}}}
    assert named(await render(helm, told), "DaemonSet", "cedana-sched-agent")["spec"]["template"]["spec"]["hostNetwork"]
    main = container(toolbox, "sleep", "60")
    await namespace.apply(pod("agent", main, serviceAccountName=account, hostNetwork=True))
    found = await namespace.ready("agent")
    token = await namespace.exec("agent", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    answer = await namespace.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=review)
    assert answer["status"]["user"]["extra"][NODE_CLAIM] == [found["spec"]["nodeName"]]
