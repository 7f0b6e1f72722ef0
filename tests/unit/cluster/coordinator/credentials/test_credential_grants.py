"""Which agent gets credentials of which namespace: every row is a request, and one word of it that is wrong."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from cedana_sched.cluster.collection_turns import KEY, CollectionTurn, encode_turns
from cedana_sched.cluster.coordinator.credentials import authorization_rules
from cedana_sched.cluster.coordinator.credentials.authorization_rules import MIRROR
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINTS, PODS, RESTORES, Resource
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.token_review import LONGEST_TOKEN
from cedana_sched.model.objects import names
from tests.unit.cluster.coordinator.credentials.granting_cluster import (
    BOUND,
    MINE,
    NODE,
    OLDER,
    OTHER_NODE,
    OURS,
    TURNS,
    UID,
    Cluster,
    ordered,
    protected,
)


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
        (ordered(label=names.REMOVE_SNAPSHOT), True),
        ({"metadata": ordered()["metadata"], "spec": {"uid": "c", "firstOrder": {"number": 1}}}, True),
        (ordered(given=3, answered=3), False),
        (ordered(given=3, answered=9), False),
        (ordered(node=OTHER_NODE), False),
        (ordered(label=names.ARCHIVED), False),
        (ordered(step="Ended"), False),
        ({"metadata": ordered()["metadata"], "spec": {"uid": "c"}}, False),
        ({"metadata": {"name": "one"}, "spec": {"uid": "c", "firstOrder": {"number": 1}}}, False),
    ],
)
def test_orders_that_are_not_answered(cluster: Cluster, resource: Resource, one: Object, is_given: bool) -> None:
    cluster.put(resource, one)
    if is_given:
        assert cluster.decide() == NODE
    else:
        assert cluster.refusal() is HTTPStatus.FORBIDDEN


@pytest.mark.parametrize("resource", [CHECKPOINTS, RESTORES])
@pytest.mark.parametrize(
    ("noted", "is_given"), [({"namespaceUID": UID}, True), ({}, True), ({"namespaceUID": OLDER}, False)]
)
def test_orders_of_a_namespace_that_had_the_name_before(
    cluster: Cluster, resource: Resource, noted: Object, is_given: bool
) -> None:
    """An older version has noted nothing."""
    cluster.put(resource, {**ordered(), "spec": {"uid": "c", **noted}})
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
        (Cluster.token(user={"username": f"system:serviceaccount:{OURS}:cedana-sched-prestop-proxy"}), 403),
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
    assert queries["restores"] == {"labelSelector": f"{names.NODE}={NODE},{names.ARCHIVED}!=true"}


def test_who_asks_is_decided_before_anything_of_a_namespace_is_said(cluster: Cluster) -> None:
    """A stranger cannot learn which namespaces there are."""
    assert cluster.refusal(token="nobody's", namespace="gone") is HTTPStatus.UNAUTHORIZED  # noqa: S106
    assert not cluster.queries
    assert authorization_rules.AUDIENCE.endswith(f".{names.GROUP}")


def given(*turns: CollectionTurn) -> Object:
    return {"metadata": {"name": TURNS}, "data": {KEY: encode_turns(turns)}}


def turn(node: str = NODE, namespace: str = MINE, seconds: float = 60.0) -> CollectionTurn:
    return CollectionTurn(node, namespace, SERVER_TIME.seconds() + seconds)


@pytest.mark.parametrize("is_there", [True, False])
def test_whose_turn_it_is_collects_a_namespace_with_which_no_node_has_to_do(cluster: Cluster, is_there: bool) -> None:
    """Also one that was deleted, and whose name nobody has, or somebody else."""
    if not is_there:
        cluster.namespaces = {"research": OLDER}
    cluster.turns = given(turn(OTHER_NODE, f"finance.{UID}"), turn())
    assert cluster.decide(collecting=True) == NODE
    assert cluster.refusal() is HTTPStatus.FORBIDDEN, "it may collect, and nothing else"


@pytest.mark.parametrize(
    "turns",
    [
        None,
        {"metadata": {"name": TURNS}},
        given(),
        given(turn(OTHER_NODE)),
        given(turn(namespace=f"research.{OLDER}")),
        given(turn(namespace="research")),
        given(turn(seconds=-1)),
        {"metadata": {"name": TURNS}, "data": {KEY: "damaged"}},
    ],
)
def test_nobody_collects_out_of_turn(cluster: Cluster, turns: Object | None) -> None:
    cluster.put(PODS, protected())
    cluster.turns = turns
    assert cluster.refusal(collecting=True) is HTTPStatus.FORBIDDEN
    assert cluster.decide() == NODE


def test_a_turn_is_no_proof_of_who_asks(cluster: Cluster) -> None:
    cluster.turns = given(turn())
    assert cluster.refusal(token="forged", collecting=True) is HTTPStatus.UNAUTHORIZED  # noqa: S106
    assert cluster.refusal(namespace="../x", collecting=True) is HTTPStatus.BAD_REQUEST
