"""Authorization of credential requests. Pure: API server objects in, a grant or a refusal out.

An agent proves its role and node by a token of its pod. The node has access to a namespace while a protected pod of it
is bound there, or an order to that node about the namespace's snapshots is unanswered. Both are API server objects that
no agent can create: a node may create mirror pods bound to it, with any label and in any namespace (NodeRestriction,
"node/kubelet can only create mirror pods"), so mirror pods do not count.

For a namespace without such access, a node may collect garbage while it has the turn (see
`cluster/collection_turns.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from cedana_sched.cluster.collection_turns import CollectionTurn
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.token_review import Reviewed
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import (
    is_keyed_by_name,
    may_be_same_namespace,
    name_of_namespace,
    namespace_store_key,
    uid_of_namespace,
    validate_namespace,
)
from cedana_sched.model.objects import names
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.records import RestoreStep

AUDIENCE: Final = f"credentials.{names.GROUP}"
"""Token audience; the API server's own tokens have other audiences, so that no recipient of those can use them here."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod, which a kubelet created."""

_POD_NAME, _POD_UID, _NODE_NAME = (
    f"authentication.kubernetes.io/{name}" for name in ("pod-name", "pod-uid", "node-name")
)


class CredentialsRefused(Exception):  # noqa: N818  # no error of ours: what is answered to a node
    """Refusal with its reason; `status` is the HTTP status of the answer."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Caller(msgspec.Struct, frozen=True):
    """An agent's pod according to its token; `node` is empty if the API server does not write it into tokens."""

    pod: str
    uid: str
    node: str = ""


class Labelled(msgspec.Struct, frozen=True, rename=api_name):
    """An object's metadata, reduced to the fields read here; annotations are complete."""

    name: str = ""
    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class PlacedSpec(msgspec.Struct, frozen=True, rename=api_name):
    node_name: str = ""


class PodState(msgspec.Struct, frozen=True):
    phase: str = ""


class PlacedPod(msgspec.Struct, frozen=True):
    """A pod, reduced to its node and the marks of protection."""

    metadata: Labelled
    spec: PlacedSpec = PlacedSpec()
    status: PodState = PodState()


def authenticate_caller(reviewed: Reviewed, account: str) -> Caller:
    """Return the agent's pod from its token.

    Args:
        reviewed: result of the TokenReview with `AUDIENCE`.
        account: the agents' ServiceAccount, as `system:serviceaccount:<namespace>:<name>`.

    Raises:
        Refused: it is no token of an agent.
    """
    if not reviewed.authenticated:
        raise CredentialsRefused(HTTPStatus.UNAUTHORIZED, "the token is none, has expired, or its pod is gone")
    if AUDIENCE not in reviewed.audiences:
        raise CredentialsRefused(HTTPStatus.UNAUTHORIZED, f"the token is not for {AUDIENCE}")
    if reviewed.user.username != account:
        raise CredentialsRefused(HTTPStatus.FORBIDDEN, "only agents get credentials, by their own ServiceAccount")
    pod, uid, node = (_single_value(reviewed.user.extra, key) for key in (_POD_NAME, _POD_UID, _NODE_NAME))
    if not pod or not uid:
        raise CredentialsRefused(HTTPStatus.FORBIDDEN, "the token is bound to no pod")
    return Caller(pod, uid, node)


def verified_node_of(caller: Caller, pod: PlacedPod | None) -> str:
    """Return the agent's node.

    Raises:
        Refused: its pod no longer exists, or is on another node.
    """
    if pod is None or pod.metadata.uid != caller.uid or not pod.spec.node_name:
        raise CredentialsRefused(HTTPStatus.FORBIDDEN, f"the agent's pod {caller.pod} is not there any more")
    if caller.node and caller.node != pod.spec.node_name:
        raise CredentialsRefused(
            HTTPStatus.FORBIDDEN, f"the agent's pod {caller.pod} is on another node than its token says"
        )
    return pod.spec.node_name


def kubernetes_namespace_of(namespace: str) -> str:
    """Return the Kubernetes name of a namespace of the store.

    Raises:
        Refused: it is malformed.
    """
    try:
        return name_of_namespace(validate_namespace(namespace))
    except UsageError:
        raise CredentialsRefused(HTTPStatus.BAD_REQUEST, "no namespace is called so") from None


def require_current_namespace(namespace: str, uid: str | None, shared: Collection[str]) -> None:
    """Require that the namespace of the store is the one that has the name now.

    Args:
        namespace: name in the store, accepted by `kubernetes_namespace_of`.
        uid: of the namespace that has that name now; None: there is none.
        shared: see `identity.is_keyed_by_name`.

    Raises:
        Refused: it is another one, or there is none.
    """
    name = name_of_namespace(namespace)
    if uid is None:
        raise CredentialsRefused(HTTPStatus.FORBIDDEN, f"there is no namespace {name}")
    kept = name if is_keyed_by_name(name, shared) else namespace_store_key(name, uid)
    if namespace != kept:
        raise CredentialsRefused(
            HTTPStatus.FORBIDDEN, f"the store keeps what is saved in namespace {name} under another name"
        )


def require_pod_or_order(node: str, namespace: str, pods: Iterable[PlacedPod], orders: Iterable[OrderedObject]) -> None:
    """Require that the node has a protected pod of the namespace, or an unanswered order about it.

    Args:
        node: see `verified_node_of`.
        namespace: name in the store; see `require_current_namespace`.
        pods: of that namespace.
        orders: Checkpoints and Restores of that namespace.

    Raises:
        Refused: it has neither.
    """
    name, uid = name_of_namespace(namespace), uid_of_namespace(namespace)
    mine = (one for one in orders if may_be_same_namespace(one.spec.namespace_uid, uid))
    if not any(_is_protected_pod_on(pod, node) for pod in pods) and not any(
        _has_unanswered_order(one, node) for one in mine
    ):
        why = f"no protected pod of namespace {name} is on node {node}, and no order about it is to be answered there"
        raise CredentialsRefused(HTTPStatus.FORBIDDEN, why)


def require_collection_turn(node: str, namespace: str, turns: Iterable[CollectionTurn]) -> None:
    """Require that the node has the turn to collect the namespace's garbage.

    Args:
        node: see `verified_node_of`.
        namespace: name in the store; the namespace may no longer exist.
        turns: unexpired ones.

    Raises:
        Refused: it has no turn.
    """
    if not any((one.node, one.namespace) == (node, namespace) for one in turns):
        raise CredentialsRefused(
            HTTPStatus.FORBIDDEN, f"it is not the turn of node {node} to collect namespace {namespace}"
        )


def _is_protected_pod_on(pod: PlacedPod, node: str) -> bool:
    return (
        pod.spec.node_name == node
        and pod.metadata.labels.get(names.PROTECTED) == "true"
        and MIRROR not in pod.metadata.annotations
        and pod.status.phase not in {"Succeeded", "Failed"}
    )


def _has_unanswered_order(one: OrderedObject, node: str) -> bool:
    labels, status, given = one.metadata.labels, one.status, one.order
    if labels.get(names.NODE) != node or labels.get(names.ARCHIVED) == "true" or given is None:
        return False
    return status.step != RestoreStep.ENDED and (status.answer is None or status.answer.number < given.number)


def _single_value(extra: Mapping[str, tuple[str, ...]], key: str) -> str:
    """Return the single value, else empty: the API server never issues such a claim with several."""
    values = extra.get(key, ())
    return values[0] if len(values) == 1 else ""
