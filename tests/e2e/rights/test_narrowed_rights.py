"""What our parts' roles let them write on objects of others, policies narrow to what they are meant to write.

Roles and policies are the chart's own, under another name, so that nothing has to run.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cedana_sched.kube.events import COMPONENT
from cedana_sched.model.objects.names import (
    API_VERSION,
    CORDONED,
    DISRUPTION_REQUESTED,
    EVICTION_REQUESTED,
    NODE_PREPARED,
    PROTECTED,
    RELEASED_HOLD,
)
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace, container, job, pod
from tests.e2e.product.rendering import NAMESPACE, RELEASE, of_kind, render

pytestmark = [pytest.mark.any_shape, pytest.mark.usefixtures("kinds")]

ROLES = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
CONFIGURATION = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
IMAGE = "registry.invalid/tenants:1"
DRY = "--dry-run=server"
OTHERS = "policies.example.org/"
"""Where another webhook of the cluster may write."""
UNSEEN = {"matchLabels": {"kubernetes.io/metadata.name": "nobody"}}
PLAIN, GANGS, GUARDED = "pod/plain", "pod/gangs", "pod/guarded"

CONTAINERS = "writes no containers, tolerations or deadlines"
METADATA = "writes annotations and labels of its own only"
STATUS = "writes DisruptionTarget of saved ones there"
SPEC = "writes no other spec of a Job"
CALLS = "never what they are called for"
KEYS = "creates the Secrets of its own keys only"
EVENTS = "writes Events in its own name only"
STOPS = "stops its coordinator, and writes nothing else in a Deployment"
MARK = "alone write sched.cedana.ai/disruption-requested, on protected pods"
BY_UID = "evicts pods by their uids, and none in a namespace that is excluded"
SETTINGS = "deletes the policies and storages of its own release only"
OF_KUEUE = ("-narrowed-kueue", "-narrowed-checks")
"""Policies that say nothing where Kueue is not: test_narrowed_rights_of_kueue.py."""


class Part:
    """Whoever has the token of one of our parts."""

    def __init__(self, namespace: Namespace, fullname: str, name: str) -> None:
        self._namespace = namespace
        self._who = (
            f"--as=system:serviceaccount:{namespace.name}:{fullname}-{name}",
            "--as-group=system:serviceaccounts",
            f"--as-group=system:serviceaccounts:{NAMESPACE}",  # an installed product keeps its marks from others
            "--as-group=system:authenticated",
        )

    async def does(self, *words: str) -> None:
        await self._namespace.kubectl(*words, DRY, *self._who)

    async def refusal(self, *words: str) -> str:
        with pytest.raises(ClusterError) as caught:
            await self.does(*words)
        return str(caught.value)


def _patch(what: str, patch: str, *options: str) -> tuple[str, ...]:
    return ("patch", what, "--type=merge", f"--patch={patch}", *options)


def _forbidden(
    node: str, configuration: str, fullname: str, foreign: Path
) -> dict[str, tuple[str, tuple[str, ...], str]]:
    """By name: who tries what, and how it is refused; `foreign` is an Event in the name of somebody else."""
    deployment, policies = f"deployment/{fullname}-coordinator", f"checkpointpolicies.sched.cedana.ai/{fullname}"
    image = '[{"op":"replace","path":"/spec/containers/0/image","value":"registry.invalid/mine:1"}]'
    image_of_pods = image.replace("/spec/", "/spec/template/spec/")
    rules = '[{"op":"replace","path":"/webhooks/0/rules/0/resources","value":["secrets"]}]'
    labelled, stopped = '{"labels":{"a":"b"}}', '"spec":{"replicas":0}'
    elsewhere = '[{"op":"replace","path":"/webhooks/0/clientConfig/service/name","value":"mine"}]'
    everybody = '[{"op":"replace","path":"/webhooks/0/namespaceSelector","value":{}}]'
    toleration = '[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]'
    owners = '[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"b"}]'
    of_status = "--subresource=status"
    marked = f'{{"metadata":{{"annotations":{{"{DISRUPTION_REQUESTED}":"x"}}}}}}'
    cordon, taint = f'{{"annotations":{{"{CORDONED}":"x"}}}}', '{"key":"a","effect":"NoExecute"}'
    return {
        "image": ("coordinator", ("patch", PLAIN, "--type=json", f"--patch={image}"), CONTAINERS),
        "image, webhooks": ("webhooks", ("patch", PLAIN, "--type=json", f"--patch={image}"), CONTAINERS),
        "image, extender": ("volcano-extender", ("patch", PLAIN, "--type=json", f"--patch={image}"), CONTAINERS),
        "toleration": ("coordinator", ("patch", PLAIN, "--type=json", f"--patch={toleration}"), CONTAINERS),
        "deadline": ("coordinator", _patch(PLAIN, '{"spec":{"activeDeadlineSeconds":1}}'), CONTAINERS),
        "label": ("coordinator", _patch(PLAIN, '{"metadata":{"labels":{"app":"mine"}}}'), METADATA),
        "label removed": ("coordinator", _patch(PLAIN, '{"metadata":{"labels":{"app":null}}}'), METADATA),
        "annotation": ("webhooks", _patch(PLAIN, '{"metadata":{"annotations":{"a":"b"}}}'), METADATA),
        "finalizer": ("coordinator", _patch(PLAIN, '{"metadata":{"finalizers":["a/b"]}}'), METADATA),
        "owner": ("coordinator", _patch(PLAIN, f'{{"metadata":{{"ownerReferences":{owners}}}}}'), METADATA),
        "phase": ("coordinator", _patch(PLAIN, '{"status":{"phase":"Succeeded"}}', of_status), STATUS),
        "nomination": ("coordinator", _patch(PLAIN, '{"status":{"nominatedNodeName":"a"}}', of_status), STATUS),
        "disruption mark": ("coordinator", _patch(GUARDED, marked), MARK),
        "disruption mark, webhooks": ("webhooks", _patch(PLAIN, marked), MARK),
        "deletion": ("coordinator", ("delete", PLAIN), "deletes pods of Volcano's gangs, and saved pods"),
        "suspension": ("coordinator", _patch("job/theirs", '{"spec":{"suspend":false}}'), SPEC),
        "label of a Job": ("coordinator", _patch("job/theirs", '{"metadata":{"labels":{"a":"b"}}}'), METADATA),
        "node": ("coordinator", _patch(f"node/{node}", '{"spec":{"unschedulable":true}}'), SPEC),
        "taint": (
            "coordinator",
            _patch(f"node/{node}", f'{{"metadata":{cordon},"spec":{{"taints":[{taint}]}}}}'),
            SPEC,
        ),
        "label of a node": ("coordinator", _patch(f"node/{node}", '{"metadata":{"labels":{"a":"b"}}}'), METADATA),
        "rules": ("webhooks", ("patch", configuration, "--type=json", f"--patch={rules}"), CALLS),
        "service": ("webhooks", ("patch", configuration, "--type=json", f"--patch={elsewhere}"), CALLS),
        "secret": ("coordinator", ("create", "secret", "generic", "mine"), KEYS),
        "secret, webhooks": ("webhooks", ("create", "secret", "generic", f"{fullname}-sealing"), KEYS),
        "namespaces": ("webhooks", ("patch", configuration, "--type=json", f"--patch={everybody}"), CALLS),
        "event": ("coordinator", ("create", f"--filename={foreign}"), EVENTS),
        "event of others": ("coordinator", _patch("event/theirs", '{"count":2}'), EVENTS),
        "message of an event": ("coordinator", _patch("event/ours", '{"message":"all is well"}'), EVENTS),
        "image, deployment": ("coordinator", ("patch", deployment, "--type=json", f"--patch={image_of_pods}"), STOPS),
        "more replicas": ("coordinator", _patch(deployment, '{"spec":{"replicas":3}}'), STOPS),
        "label of a deployment": ("coordinator", _patch(deployment, f'{{"metadata":{labelled},{stopped}}}'), METADATA),
        "policy": ("coordinator", ("delete", f"{policies}-theirs"), SETTINGS),
    }


def _meant(node: str, configuration: str, fullname: str, own: Path) -> list[tuple[str, tuple[str, ...]]]:
    bundle = '[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"LS0tCg=="}]'
    path = '[{"op":"add","path":"/webhooks/0/clientConfig/service/path","value":"/elsewhere"}]'
    cpus = '{"matchExpressions":[{"key":"sched.cedana.ai/cpu-features","operator":"In","values":["a"]}]}'
    required = f'{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":[{cpus}]}}}}'
    affinity = f'{{"op":"add","path":"/spec/affinity","value":{{"nodeAffinity":{required}}}}}'
    gate = f'[{affinity},{{"op":"remove","path":"/spec/schedulingGates/0"}}]'
    return [
        ("coordinator", ("patch", PLAIN, "--type=json", f"--patch={gate}")),
        ("coordinator", _patch(PLAIN, f'{{"metadata":{{"annotations":{{"{EVICTION_REQUESTED}":null}}}}}}')),
        ("coordinator", _patch(PLAIN, '{"status":{"nominatedNodeName":null}}', "--subresource=status")),
        ("coordinator", ("delete", GANGS)),
        ("coordinator", _patch("job/theirs", f'{{"metadata":{{"annotations":{{"{RELEASED_HOLD}":"x"}}}}}}')),
        ("coordinator", _patch(f"node/{node}", f'{{"metadata":{{"labels":{{"{NODE_PREPARED}":null}}}}}}')),
        (
            "coordinator",
            _patch(
                f"node/{node}", f'{{"metadata":{{"annotations":{{"{CORDONED}":"x"}}}},"spec":{{"unschedulable":true}}}}'
            ),
        ),
        ("webhooks", _patch(PLAIN, f'{{"metadata":{{"annotations":{{"{EVICTION_REQUESTED}":"x"}}}}}}')),
        ("webhooks", _patch(GUARDED, f'{{"metadata":{{"annotations":{{"{DISRUPTION_REQUESTED}":"x"}}}}}}')),
        ("webhooks", ("patch", configuration, "--type=json", f"--patch={bundle}")),
        ("webhooks", ("patch", configuration, "--type=json", f"--patch={path}")),
        ("coordinator", ("create", "secret", "generic", f"{fullname}-sealing")),
        ("webhooks", ("create", "secret", "generic", f"{fullname}-webhooks")),
        ("coordinator", ("create", f"--filename={own}")),
        ("coordinator", _patch("event/ours", '{"count":2,"lastTimestamp":"2026-11-21T13:00:00Z"}')),
        ("coordinator", _patch(f"deployment/{fullname}-coordinator", '{"spec":{"replicas":0}}')),
        ("coordinator", ("delete", f"checkpointpolicies.sched.cedana.ai/{fullname}-ours")),
        ("coordinator", _patch(PLAIN, f'{{"metadata":{{"labels":{{"{OTHERS}a":"b"}}}}}}')),
        ("coordinator", _patch(f"node/{node}", f'{{"metadata":{{"annotations":{{"{OTHERS}a":"b"}}}}}}')),
    ]


class Parts:
    """Our parts' accounts, and objects of others."""

    def __init__(self, namespace: Namespace, served: Namespace, fullname: str, node: str, files: Path) -> None:
        self.namespace = namespace
        self._fullname = fullname
        self.served = served
        configuration = f"{CONFIGURATION[1].lower()}/{fullname}"
        own, foreign = files / "own.json", files / "foreign.json"
        own.write_text(json.dumps(_event("new", namespace.name)))
        foreign.write_text(json.dumps(_event("new", namespace.name, "kubelet")))
        by_name = _evict(files / "by-name.json", "plain", served.name)
        self.forbidden = {
            **_forbidden(node, configuration, fullname, foreign),
            "eviction": ("coordinator", by_name, BY_UID),
        }
        self.meant = _meant(node, configuration, fullname, own)

    def part(self, name: str) -> Part:
        return Part(self.namespace, self._fullname, name)

    def tries(self, what: str) -> Callable[[], Awaitable[object]]:
        who, words, _ = self.forbidden[what]
        return lambda: self.part(who).does(*words)


def _evict(file: Path, pod_name: str, namespace: str, *, uid: str | None = None) -> tuple[str, ...]:
    """`file`: is written, with the eviction."""
    options = {} if uid is None else {"deleteOptions": {"preconditions": {"uid": uid}}}
    metadata = {"name": pod_name, "namespace": namespace}
    file.write_text(json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, **options}))
    path = f"/api/v1/namespaces/{namespace}/pods/{pod_name}/eviction?dryRun=All"
    return ("create", f"--raw={path}", f"--filename={file}")


def _event(name: str, namespace: str, component: str = COMPONENT) -> Object:
    """About a pod of the namespace."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "plain", "namespace": namespace},
        "type": "Normal",
        "reason": "Saved",
        "message": "it is saved",
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
        "firstTimestamp": "2026-11-21T12:00:00Z",
        "lastTimestamp": "2026-11-21T12:00:00Z",
        "count": 1,
    }


def _deployment(fullname: str) -> Object:
    """Makes no pods: it is paused."""
    labels = {"app": fullname}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": IMAGE}]}}
    spec = {"replicas": 2, "paused": True, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": f"{fullname}-coordinator"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def _policies(fullname: str) -> list[Object]:
    """One that the release has made, and another one."""
    labels = {"app.kubernetes.io/instance": RELEASE}
    body = {"apiVersion": API_VERSION, "kind": "CheckpointPolicy", "spec": {}}
    return [
        {**body, "metadata": {"name": f"{fullname}-ours", "labels": labels}},
        {**body, "metadata": {"name": f"{fullname}-theirs"}},
    ]


def _configuration(name: str, namespace: str) -> Object:
    """Nothing is sent to it."""
    return {
        "apiVersion": CONFIGURATION[0],
        "kind": CONFIGURATION[1],
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "pods.example.org",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {"service": {"name": "ours", "namespace": namespace, "path": "/pods"}},
                "failurePolicy": "Ignore",
                "sideEffects": "None",
                "namespaceSelector": UNSEEN,
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                ],
            }
        ],
    }


def _kubectls(fullname: str, namespace: str) -> list[Object]:
    """It reads what it is to patch."""
    group, name = "rbac.authorization.k8s.io", f"{fullname}-kubectl"
    resources = ["pods", "pods/status", "jobs", "nodes", "mutatingwebhookconfigurations", "events"]
    role = {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}}
    return [
        {**role, "rules": [{"apiGroups": ["*"], "resources": resources, "verbs": ["get"]}]},
        {
            **role,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": f"{fullname}-{part}", "namespace": namespace}
                for part in ("coordinator", "webhooks", "volcano-extender")
            ],
        },
    ]


def _pod(name: str, *, protected: bool = False, **spec: Any) -> Object:
    gate = [{"name": "example.org/never"}]
    labels = {"app": "theirs", **({PROTECTED: "true"} if protected else {})}
    return pod(name, container(IMAGE, "true"), labels=labels, schedulingGates=gate, **spec)


@pytest_asyncio.fixture(loop_scope="session")
async def served(cluster: Cluster, api: Api, namespace: Namespace) -> AsyncIterator[Namespace]:
    """A namespace of tenants."""
    async with Namespace.created(cluster, api, f"served-{namespace.name[-5:]}") as served:
        yield served


@pytest_asyncio.fixture(loop_scope="session")
async def parts(
    namespace: Namespace, served: Namespace, api: Api, cluster: Cluster, helm: Binaries, tmp_path: Path
) -> AsyncIterator[Parts]:
    """Each attack succeeds without the policies, which are written then.

    The release's namespace is that of the test, and so excluded; another one is served.
    """
    fullname = f"rights-{namespace.name[-5:]}"
    told = {
        "storage": {"posix": {"path": "/x"}},
        "fullnameOverride": fullname,
        "volcano": {"enabled": True, "extender": {"enabled": True}},
        "kueue": {"enabled": True},
        "kubernetes": {"enabled": True},
        "narrowedRights": {"keysOfOthers": [OTHERS]},
    }
    rendered = await render(helm, told, namespace=namespace.name)
    roles = [*of_kind(rendered, *ROLES), *_kubectls(fullname, namespace.name)]
    policies = [
        one for one in of_kind(rendered, *POLICIES)
        if f"{fullname}-narrowed-" in one["metadata"]["name"] and not one["metadata"]["name"].endswith(OF_KUEUE)
    ]  # fmt: skip
    assert len(policies) == 16
    others = _policies(fullname)
    configuration = _configuration(fullname, namespace.name)
    found = Parts(namespace, served, fullname, next(iter(cluster.nodes)), tmp_path)
    held = job("theirs", container(IMAGE, "true"))
    held["spec"]["suspend"] = True
    try:
        for body in (*roles, configuration, *others):
            await api.apply(body, namespace.name)
        await namespace.apply(_pod("plain"), _pod("gangs", schedulerName="volcano"), held, _deployment(fullname))
        await namespace.apply(_pod("guarded", protected=True))
        await served.apply(_pod("plain"))
        await namespace.apply(_event("ours", namespace.name), _event("theirs", namespace.name, "kubelet"))
        for what in found.forbidden:
            await found.tries(what)()
        for body in policies:
            await api.apply(body)
        for what in (
            "image",
            "suspension",
            "rules",
            "secret",
            "event",
            "more replicas",
            "policy",
            "eviction",
        ):  # one of each policy
            await wait_until_refused(found.tries(what), found.forbidden[what][2])
        yield found
    finally:
        for body in (*policies, configuration, *others, *roles):
            await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"], namespace.name)


async def test_a_part_of_ours_writes_what_it_is_meant_to_write_and_nothing_else(parts: Parts) -> None:
    for who, words in parts.meant:
        await parts.part(who).does(*words)
    for what, (who, words, why) in parts.forbidden.items():
        assert why in await parts.part(who).refusal(*words), what


async def test_pods_are_evicted_by_their_uids_and_not_in_excluded_namespaces(parts: Parts, tmp_path: Path) -> None:
    coordinator = parts.part("coordinator")
    for place, is_excluded in ((parts.served, False), (parts.namespace, True)):
        mine = await place.get("v1", "Pod", "plain")
        eviction = _evict(tmp_path / f"{place.name}.json", "plain", place.name, uid=mine["metadata"]["uid"])
        if is_excluded:
            assert BY_UID in await coordinator.refusal(*eviction)
        else:
            await coordinator.does(*eviction)


async def test_nobody_else_is_narrowed(namespace: Namespace, parts: Parts) -> None:
    for _, words, _ in parts.forbidden.values():
        await namespace.kubectl(*words, DRY)
