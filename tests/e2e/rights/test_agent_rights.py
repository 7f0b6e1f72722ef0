"""An agent's token is good for its own node only, and there only for what an agent writes.

The rights and the policy are the chart's own, under another name, so that nothing has to run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio
from kubernetes_asyncio.client import ApiException

from cedana_sched.kube.events import COMPONENT
from cedana_sched.model.objects.names import API_VERSION, CHECKPOINTABLE, NODE, NODE_PREPARED
from tests.cluster.api.admission import wait_until_allowed, wait_until_refused
from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.rendering import RELEASE, named, of_kind, render

pytestmark = [pytest.mark.any_shape, pytest.mark.usefixtures("kinds")]

KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
POLICY = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
NODE_CLAIM = "authentication.kubernetes.io/node-name"
POD_UID = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
TENANT = "tenant"
"""May do everything in the namespace, and nothing elsewhere."""
WRITTEN_BY = "are written by the coordinator alone"
DRY = "--dry-run=server"
NOW = "2026-11-21T12:00:00.000000Z"


class Person:
    """Whoever says so, with the rights that this name has in the namespace."""

    def __init__(self, namespace: Namespace, user: str, *more: str) -> None:
        self._namespace = namespace
        self._who = [f"--as={user}", "--as-group=system:authenticated", *more]

    async def does(self, *words: str) -> None:
        await self._namespace.kubectl(*words, *self._who)

    async def patches(self, *what: str, **patch: object) -> None:
        await self.does("patch", *what, "--type=merge", f"--patch={json.dumps(patch)}")

    async def is_refused(self, *what: str, **patch: object) -> str:
        with pytest.raises(ClusterError) as caught:
            await self.patches(*what, **patch)
        return str(caught.value)

    async def may_not(self, *words: str) -> str:
        with pytest.raises(ClusterError) as caught:
            await self.does(*words)
        return str(caught.value)


class Agent(Person):
    """Whoever has the token of the agent of a node."""

    def __init__(self, namespace: Namespace, account: str, node: str) -> None:
        claim = [f"--as-user-extra={NODE_CLAIM}={node}"] if node else []
        user = f"system:serviceaccount:{namespace.name}:{account}"
        super().__init__(namespace, user, "--as-group=system:serviceaccounts", *claim)


@pytest_asyncio.fixture(loop_scope="session")
async def account(namespace: Namespace, api: Api, helm: Binaries) -> AsyncIterator[str]:
    """The agent's ServiceAccount, with the rights that the chart gives it and the coordinator; and who is neither."""
    fullname = f"rights-{namespace.name[-5:]}"
    told = {"storage": {"posix": {"path": "/x"}}, "fullnameOverride": fullname}
    rendered = await render(helm, told, namespace=namespace.name)
    ours = {f"{fullname}-{part}" for part in ("agent", "coordinator", "records")}
    bodies = [body for body in of_kind(rendered, *KINDS, *POLICY) if body["metadata"]["name"] in ours]
    assert len(bodies) == 2 * len(KINDS) + 2 * len(POLICY)
    bodies += _all_rights_in(namespace.name)
    binding = named(bodies, "ValidatingAdmissionPolicyBinding", f"{fullname}-records")
    here = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [namespace.name]}
    binding["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [here]}}
    name = f"{fullname}-agent"
    async with _without_the_installed_policy(api, here):
        try:
            for body in bodies:
                await api.apply(body, namespace.name)
            await namespace.apply(checkpoint("probe"))
            stranger, probe = Agent(namespace, name, "nowhere"), ("cckpt/probe", "--subresource=status", DRY)
            await wait_until_refused(
                lambda: stranger.patches(*probe, status={"deadline": NOW}), "has nothing to write about node"
            )
            tenant = Person(namespace, TENANT)
            await wait_until_refused(lambda: tenant.patches(*probe, status={"deadline": NOW}), WRITTEN_BY)
            mine = Agent(namespace, name, "gpu-3")
            await wait_until_allowed(lambda: mine.patches(*probe, status=ANSWER))
            yield name
        finally:
            for body in bodies:
                await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"], namespace.name)


def _all_rights_in(namespace: str) -> list[Object]:
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    metadata, group = {"name": TENANT, "namespace": namespace}, "rbac.authorization.k8s.io"
    return [
        {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [everything]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": TENANT},
            "subjects": [{"apiGroup": group, "kind": "User", "name": TENANT}],
        },
    ]


@asynccontextmanager
async def _without_the_installed_policy(api: Api, here: Object) -> AsyncIterator[None]:
    """Where the product is installed, its own policy knows no coordinator and no agents but its own."""
    which = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", f"{RELEASE}-records"
    try:
        await api.get(*which)
    except ApiException as error:
        if error.status != 404:
            raise
        yield
        return
    elsewhere = {"namespaceSelector": {"matchExpressions": [{**here, "operator": "NotIn"}]}}
    await api.patch(*which, {"spec": {"matchResources": elsewhere}})
    try:
        yield
    finally:
        await api.patch(*which, {"spec": {"matchResources": None}})


def checkpoint(name: str, node: str = "gpu-3") -> Object:
    spec = {
        "uid": name, "identity": {"id": "md-run"}, "podRef": {"name": "md-run-0", "uid": POD_UID, "nodeName": node},
        "adapter": "kueue", "holdUID": "h-1", "reason": "InCohortReclamation", "creationTime": NOW,
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
        assert "status.answer, status.transfer and status.replacedBy only" in said
    assert "cannot patch resource" in await agent.is_refused("cckpt/ours", spec={"adapter": "me"})
    assert "cannot patch resource" in await agent.is_refused("cckpt/ours", metadata={"labels": {"a": "b"}})


async def test_it_tells_of_pods_that_begin_again_on_its_own_node_only(namespace: Namespace, account: str) -> None:
    for name, node in (("ours", "gpu-3"), ("theirs", "gpu-4")):
        made = checkpoint(name, node)
        spec = {key: made["spec"][key] for key in ("uid", "identity", "podRef", "adapter", "creationTime")}
        await namespace.apply({**made, "kind": "Restore", "spec": spec})
        status = {"status": {"step": "Running", "deadline": NOW}}
        await namespace.api.patch(API_VERSION, "Restore", name, status, namespace.name, subresource="status")
    agent = Agent(namespace, account, "gpu-3")
    await agent.patches("crst/ours", "--subresource=status", status={"replacedBy": "c2"})
    written = (await namespace.get(API_VERSION, "Restore", "ours"))["status"]
    assert (written["replacedBy"], written["step"]) == ("c2", "Running")
    said = await agent.is_refused("crst/theirs", "--subresource=status", status={"replacedBy": "c2"})
    assert "the agent of node gpu-3 has nothing to write about node gpu-4" in said
    await agent.is_refused("crst/ours", "--subresource=status", status={"incarnation": 1})


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
    written = {"labels": {f"{NODE_PREPARED}-test": "true"}, "annotations": {f"{NODE_PREPARED}-test": "{}"}}
    await agent.patches(f"node/{node}", metadata=written)
    try:
        for wrong in (
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": "me"}}},
            {"metadata": {"labels": {next(iter(before["labels"])): None}}},
            {"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "1"}}},
            {"metadata": {"annotations": {"a": "b"}}},
            {"metadata": {"annotations": {next(iter(before["annotations"])): None}}},
            {"metadata": {"finalizers": ["a.b/c"]}},
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"}]}},
            {"spec": {"unschedulable": True}},
        ):
            assert "on its node only" in await agent.is_refused(f"node/{node}", **wrong)
        stranger = Agent(namespace, account, "elsewhere")
        assert "nothing to write" in await stranger.is_refused(f"node/{node}", metadata=written)
    finally:
        gone = {kind: {f"{NODE_PREPARED}-test": None} for kind in ("labels", "annotations")}
        await api.patch("v1", "Node", node, {"metadata": gone})


async def test_it_writes_one_condition_of_the_pods_of_its_own_node(
    namespace: Namespace, cluster: Cluster, account: str, toolbox: str
) -> None:
    main = container(toolbox, "sleep", "60")
    node, other = sorted(cluster.nodes)[:2]
    await namespace.apply(pod("theirs", main, nodeName=other, tolerations=[{"operator": "Exists"}]))
    await namespace.apply(pod("ours", main, nodeName=node, tolerations=[{"operator": "Exists"}]))
    found = await namespace.ready("ours")
    agent, status = Agent(namespace, account, node), ("--subresource=status",)
    condition = {"type": CHECKPOINTABLE, "status": "False", "reason": "UsesIoUring", "message": "it uses io_uring"}
    conditions = found["status"]["conditions"]
    await agent.patches("pod/ours", *status, status={"conditions": [*conditions, condition]})
    written = (await namespace.get("v1", "Pod", "ours"))["status"]["conditions"]
    assert [one["reason"] for one in written if one["type"] == CHECKPOINTABLE] == ["UsesIoUring"]
    assert [one for one in written if one["type"] != CHECKPOINTABLE] == conditions
    ready = [{**one, "status": "False"} if one["type"] == "Ready" else one for one in conditions]
    for wrong in (
        {"status": {"conditions": [*ready, condition]}},
        {"status": {"conditions": [condition]}},
        {"status": {"conditions": conditions}},
        {"status": {"conditions": [*conditions, {**condition, "type": "DisruptionTarget", "status": "True"}]}},
        {"status": {"conditions": [*conditions, {**condition, "message": "x" * 2000}]}},
        {"status": {"phase": "Failed"}},
        {"status": {"reason": "Evicted", "message": "me"}},
        {"status": {"containerStatuses": None}},
        {"metadata": {"annotations": {"sched.cedana.ai/id": "other"}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.b/c"]}},
    ):
        said = await agent.is_refused("pod/ours", *status, DRY, **wrong)
        assert f"an agent writes the condition {CHECKPOINTABLE} of pods of its node only" in said
    theirs = (await namespace.get("v1", "Pod", "theirs"))["status"]["conditions"]
    said = await agent.is_refused("pod/theirs", *status, DRY, status={"conditions": [*theirs, condition]})
    assert f"the agent of node {node} has nothing to write about node {other}" in said
    assert "cannot patch resource" in await agent.is_refused("pod/ours", DRY, metadata={"labels": {"a": "b"}})


def _event(kind: str, name: str, **fields: object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "name": name},
        "type": "Warning",
        "reason": "HoldPortInUse",
        "message": "somebody else answers",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
        "firstTimestamp": "2026-11-21T12:00:00Z",
        "lastTimestamp": "2026-11-21T12:00:00Z",
        "count": 1,
        **fields,
    }


async def test_it_tells_events_of_its_own_node_in_our_name(namespace: Namespace, account: str, tmp_path: Path) -> None:
    """Its own Events have no namespace of their own, and so stand in `default`."""
    agent, file = Agent(namespace, account, "gpu-3"), tmp_path / "event.json"
    in_default = ("create", f"--filename={file}", "--namespace=default", DRY)
    file.write_text(json.dumps(_event("Node", "gpu-3")))
    await agent.does(*in_default)
    for wrong, why in (
        (_event("Node", "gpu-4"), "has nothing to write about node gpu-4"),
        (_event("Pod", "gpu-3", involvedObject={"kind": "Pod", "namespace": "default"}), "has nothing to write"),
        (_event("Node", "gpu-3", source={"component": "kubelet"}), "writes Events in its own name only"),
        (_event("Node", "gpu-3", reportingComponent="kubelet"), "writes Events in its own name only"),
    ):
        file.write_text(json.dumps(wrong))
        assert why in await agent.may_not(*in_default)
    file.write_text(json.dumps({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "new", "namespace": "default"},
        "regarding": {"kind": "Node", "name": "gpu-3"}, "reportingController": COMPONENT, "reportingInstance": "a",
        "eventTime": NOW, "type": "Normal", "reason": "A", "action": "A",
    }))  # fmt: skip
    assert "cannot create resource" in await agent.may_not(*in_default)


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


def _record(kind: str, name: str) -> Object:
    made = checkpoint(name)
    fields = ("uid", "adapter", "creationTime", *(("reason",) if kind == "PreemptionHold" else ("identity", "podRef")))
    return made if kind == "Checkpoint" else {**made, "kind": kind, "spec": {key: made["spec"][key] for key in fields}}


async def test_all_rights_in_a_namespace_write_no_record(namespace: Namespace, account: str, tmp_path: Path) -> None:
    """What stands in one commands the agents, and the coordinator."""
    tenant = Person(namespace, TENANT)
    for kind, short in (("Checkpoint", "cckpt"), ("PreemptionHold", "phold"), ("Restore", "crst")):
        await namespace.apply(_record(kind, "ours"))
        forged = tmp_path / f"{short}.json"
        forged.write_text(json.dumps(_record(kind, "forged")))
        assert WRITTEN_BY in await tenant.may_not("create", f"--filename={forged}", DRY)
        what = f"{short}/ours"
        statuses: list[Object] = [{"deadline": NOW}]
        if kind != "PreemptionHold":
            statuses += [{"order": {"number": 9, "order": {"type": "Kill"}}}, ANSWER]
        for status in statuses:
            assert WRITTEN_BY in await tenant.is_refused(what, "--subresource=status", DRY, status=status)
        for metadata in ({"labels": {NODE: "gpu-4"}}, {"annotations": {"a": "b"}}, {"finalizers": ["a.b/c"]}):
            assert WRITTEN_BY in await tenant.is_refused(what, DRY, metadata=metadata)
        if kind != "Checkpoint":
            assert WRITTEN_BY in await tenant.may_not("delete", what, DRY)


async def test_people_may_delete_checkpoints(namespace: Namespace, account: str) -> None:
    await namespace.apply(checkpoint("ours"))
    await Person(namespace, TENANT).does("delete", "cckpt/ours", "--wait=false")
    assert "not found" in await Person(namespace, TENANT).may_not("get", "cckpt/ours")


async def test_the_coordinator_writes_records(namespace: Namespace, account: str, tmp_path: Path) -> None:
    user = f"system:serviceaccount:{namespace.name}:{account.removesuffix('-agent')}-coordinator"
    coordinator, file = Person(namespace, user), tmp_path / "hold.json"
    file.write_text(json.dumps(_record("PreemptionHold", "ours")))
    await coordinator.does("create", f"--filename={file}")
    await coordinator.patches("phold/ours", "--subresource=status", status={"step": "Holding", "deadline": NOW})
    await coordinator.patches("phold/ours", metadata={"labels": {"a": "b"}})
    await coordinator.does("delete", "phold/ours")


@pytest.mark.parametrize("controller", ["namespace-controller", "generic-garbage-collector"])
async def test_kubernetes_itself_removes_records(namespace: Namespace, account: str, controller: str) -> None:
    await namespace.apply(_record("Restore", "ours"))
    user = f"system:serviceaccount:kube-system:{controller}"
    itself = Person(
        namespace, user, "--as-group=system:serviceaccounts", "--as-group=system:serviceaccounts:kube-system"
    )
    await itself.does("delete", "crst/ours", DRY)
    if controller == "generic-garbage-collector":
        await itself.patches("crst/ours", DRY, metadata={"finalizers": ["a.b/c"]})
        assert WRITTEN_BY in await itself.is_refused("crst/ours", DRY, metadata={"labels": {NODE: "gpu-4"}})
