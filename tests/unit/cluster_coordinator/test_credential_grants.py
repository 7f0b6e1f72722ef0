"""Which agent gets credentials of which namespace: every row is a request, and one word of it that is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from cedana_sched.cluster.coordinator.credentials import grants
from cedana_sched.cluster.coordinator.credentials.evidence import Evidence
from cedana_sched.cluster.coordinator.credentials.grants import AUDIENCE, MIRROR, Refused
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINTS, NAMESPACES, PODS, RESTORES, Resource
from cedana_sched.kube.token_access import LONGEST_TOKEN, TOKEN_REVIEWS
from cedana_sched.model.objects import names

OURS = "cedana-sched"
ACCOUNT = f"system:serviceaccount:{OURS}:cedana-sched-agent"
UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
OLDER = "00000000-7425-40de-944b-e07fc1f90ae7"
MINE = f"research.{UID}"
NODE, OTHER_NODE = "node-1", "node-2"
BOUND = "authentication.kubernetes.io"


def protected(node: str = NODE, phase: str = "Running", **annotations: str) -> Object:
    metadata = {"name": "worker", "labels": {names.PROTECTED: "true"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


def ordered(given: int = 1, answered: int | None = None, node: str = NODE, settled: str = "", **more: Any) -> Object:
    labels = {names.NODE: node} | ({names.SETTLED: settled} if settled else {})
    status: Object = {"order": {"number": given}, **more}
    if answered is not None:
        status["answer"] = {"number": answered}
    return {"metadata": {"name": "one", "labels": labels}, "spec": {}, "status": status}


@dataclass
class Cluster:
    """An API server with one agent, one namespace, and what is in it. It selects nothing: that is no border."""

    tokens: dict[str, Object] = field(default_factory=dict)
    agents: dict[str, Object] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=lambda: {"research": UID, "finance": OLDER})
    objects: dict[tuple[str, str], list[Object]] = field(default_factory=dict)
    queries: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agents["agent-x"] = {"metadata": {"name": "agent-x", "uid": "u-1"}, "spec": {"nodeName": NODE}}
        self.tokens["good"] = self.token()

    @staticmethod
    def token(**changed: Any) -> Object:
        extra = {f"{BOUND}/pod-name": ["agent-x"], f"{BOUND}/pod-uid": ["u-1"], f"{BOUND}/node-name": [NODE]}
        extra |= changed.pop("extra", {})
        user = {"username": ACCOUNT, "extra": extra} | changed.pop("user", {})
        return {"authenticated": True, "audiences": [AUDIENCE], "user": user} | changed

    def put(self, resource: Resource, *objects: Object, namespace: str = "research") -> None:
        self.objects[resource.plural, namespace] = list(objects)

    async def create(self, resource: Resource, body: Object, *, into: type[Any]) -> Any:
        assert resource is TOKEN_REVIEWS
        assert body["spec"]["audiences"] == [AUDIENCE]
        return msgspec.convert({"status": self.tokens.get(body["spec"]["token"], {"authenticated": False})}, into)

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[Any]) -> Any:
        if resource is PODS:
            assert namespace == OURS
            found = self.agents.get(name)
        else:
            assert resource is NAMESPACES
            uid = self.namespaces.get(name)
            found = {"metadata": {"name": name, "uid": uid}} if uid is not None else None
        return msgspec.convert(found, into) if found is not None else None

    async def list_all(
        self,
        resource: Resource,
        namespace: str | None = None,
        query: Mapping[str, str] | None = None,
        *,
        into: type[Any],
    ) -> Any:
        self.queries.append((resource.plural, query or {}))
        found = self.objects.get((resource.plural, namespace or ""), [])
        return tuple(msgspec.convert(one, into) for one in found), "1"

    def decide(self, token: str = "good", namespace: str = MINE, shared: tuple[str, ...] = ()) -> str:  # noqa: S107
        evidence = Evidence(self, OURS, "cedana-sched-agent", shared)  # type: ignore[arg-type]  # as much as is called
        return asyncio.run(evidence.node_with_business(token, namespace))

    def refusal(self, **request: Any) -> HTTPStatus:
        with pytest.raises(Refused) as refused:
            self.decide(**request)
        return refused.value.status


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_node_with_a_protected_pod_of_the_namespace_gets_them(cluster: Cluster) -> None:
    cluster.put(PODS, protected())
    assert cluster.decide() == NODE


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (protected(OTHER_NODE), "on a foreign node"),
        (protected(""), "not bound yet"),
        (protected(phase="Succeeded"), "over"),
        (protected(phase="Failed"), "over"),
        (protected(**{MIRROR: "hash"}), "made by a kubelet itself"),
        (protected() | {"metadata": {"labels": {}}}, "not ours"),
        (protected() | {"metadata": {"labels": {names.PROTECTED: "false"}}}, "not protected"),
    ],
)
def test_a_pod_that_gives_its_node_no_business(cluster: Cluster, pod: Object, why: str) -> None:
    cluster.put(PODS, pod)
    assert cluster.refusal() is HTTPStatus.FORBIDDEN, why


@pytest.mark.parametrize("resource", [CHECKPOINTS, RESTORES])
@pytest.mark.parametrize(
    ("one", "is_given"),
    [
        (ordered(), True),
        (ordered(given=3, answered=2), True),
        (ordered(settled=names.REMOVING), True),
        ({"metadata": ordered()["metadata"], "spec": {"firstOrder": {"number": 1}}}, True),
        (ordered(given=3, answered=3), False),
        (ordered(given=3, answered=9), False),
        (ordered(node=OTHER_NODE), False),
        (ordered(settled="true"), False),
        (ordered(step="Ended"), False),
        ({"metadata": ordered()["metadata"], "spec": {}}, False),
        ({"metadata": {"name": "one"}, "spec": {"firstOrder": {"number": 1}}}, False),
    ],
)
def test_orders_that_are_not_answered(cluster: Cluster, resource: Resource, one: Object, is_given: bool) -> None:
    cluster.put(resource, one)
    if is_given:
        assert cluster.decide() == NODE
    else:
        assert cluster.refusal() is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("status", "answered"),
    [
        ({"authenticated": False}, 401),  # expired, forged, or of a pod that is gone: the API server says no more
        (Cluster.token(audiences=[]), 401),
        (Cluster.token(audiences=["https://api.example"]), 401),
        (Cluster.token(user={"username": f"system:serviceaccount:{OURS}:cedana-sched-holds"}), 403),
        (Cluster.token(user={"username": "system:serviceaccount:research:cedana-sched-agent"}), 403),
        (Cluster.token(user={"username": f"system:node:{NODE}"}), 403),
        (Cluster.token(extra={f"{BOUND}/pod-name": []}), 403),
        (Cluster.token(extra={f"{BOUND}/pod-uid": []}), 403),
        (Cluster.token(extra={f"{BOUND}/pod-uid": ["u-2"]}), 403),
        (Cluster.token(extra={f"{BOUND}/pod-uid": ["u-1", "u-2"]}), 403),
        (Cluster.token(extra={f"{BOUND}/pod-name": ["agent-y"]}), 403),
        (Cluster.token(extra={f"{BOUND}/node-name": [OTHER_NODE]}), 403),
    ],
)
def test_a_token_that_is_no_agents(cluster: Cluster, status: Object, answered: int) -> None:
    cluster.put(PODS, protected())
    cluster.tokens["shown"] = status
    assert cluster.refusal(token="shown") == answered  # noqa: S106


@pytest.mark.parametrize("token", ["", "nobody's", "x" * (LONGEST_TOKEN + 1)])
def test_a_token_that_is_none(cluster: Cluster, token: str) -> None:
    cluster.put(PODS, protected())
    assert cluster.refusal(token=token) is HTTPStatus.UNAUTHORIZED


def test_an_api_server_that_writes_no_node_into_tokens(cluster: Cluster) -> None:
    cluster.put(PODS, protected())
    cluster.tokens["good"] = Cluster.token(extra={f"{BOUND}/node-name": []})
    assert cluster.decide() == NODE


def test_the_node_is_that_of_the_agents_pod(cluster: Cluster) -> None:
    cluster.put(PODS, protected(OTHER_NODE))
    cluster.tokens["good"] = Cluster.token(extra={f"{BOUND}/node-name": []})
    assert cluster.refusal() is HTTPStatus.FORBIDDEN
    cluster.agents["agent-x"]["spec"] = {"nodeName": OTHER_NODE}
    assert cluster.decide() == OTHER_NODE


@pytest.mark.parametrize(
    ("namespace", "answered"),
    [
        (f"finance.{OLDER}", 403),  # a pod of ours is in research only
        (f"research.{OLDER}", 403),  # the namespace that had the name before
        ("research", 403),  # not shared: nothing of it is kept so
        (f"gone.{UID}", 403),
        ("", 400),
        ("*", 400),
        (f"{MINE}*", 400),
        (f"{MINE}/", 400),
        (f"{MINE}/packs", 400),
        (f"../{MINE}", 400),
        (f"{MINE}/../finance.{OLDER}", 400),
        ("..", 400),
        (".", 400),
        ("${aws:username}", 400),
        ("research?", 400),
        ("research\n", 400),
        ("a" * 64, 400),
    ],
)
def test_a_namespace_that_is_foreign_or_forged(cluster: Cluster, namespace: str, answered: int) -> None:
    cluster.put(PODS, protected())
    assert cluster.refusal(namespace=namespace) == answered


@pytest.mark.parametrize("shared", [("research",), ("*",)])
def test_a_name_that_is_shared_is_kept_by_the_name_alone(cluster: Cluster, shared: tuple[str, ...]) -> None:
    cluster.put(PODS, protected())
    assert cluster.decide(namespace="research", shared=shared) == NODE
    assert cluster.refusal(namespace=MINE, shared=shared) is HTTPStatus.FORBIDDEN
    assert cluster.refusal(namespace="finance", shared=shared) is HTTPStatus.FORBIDDEN


def test_only_what_concerns_the_node_is_listed(cluster: Cluster) -> None:
    cluster.put(PODS, protected())
    cluster.decide()
    queries = dict(cluster.queries)
    assert queries["pods"] == {"labelSelector": f"{names.PROTECTED}=true", "fieldSelector": f"spec.nodeName={NODE}"}
    assert queries["restores"] == {"labelSelector": f"{names.NODE}={NODE},{names.SETTLED}!=true"}


def test_who_asks_is_decided_before_anything_of_a_namespace_is_said(cluster: Cluster) -> None:
    """A stranger cannot learn which namespaces there are."""
    assert cluster.refusal(token="nobody's", namespace="gone") is HTTPStatus.UNAUTHORIZED  # noqa: S106
    assert not cluster.queries
    assert grants.AUDIENCE.endswith(f".{names.GROUP}")
