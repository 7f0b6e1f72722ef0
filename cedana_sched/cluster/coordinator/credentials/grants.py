"""Who gets credentials of which namespace. Pure: what the API server says goes in, a grant or a refusal comes out.

An agent proves by a token of its pod that it is one, and on which node. That node has to do with a namespace while a
protected pod of it is bound there, or an order to that node about the namespace's snapshots is not answered yet. Both
say the API server's objects, which no agent can make: a node may create mirror pods that are bound to it, with any
label and in any namespace (NodeRestriction, "node/kubelet can only create mirror pods"), so these do not count.

Of a namespace with which no node has to do, that node may collect the garbage whose turn it is (see
`cluster/collection_turns.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from cedana_sched.cluster.collection_turns import CollectionTurn
from cedana_sched.kube.token_review import Reviewed
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import (
    is_shared,
    may_be_one_namespace,
    name_of_namespace,
    namespace_of_uid,
    uid_of_namespace,
    validate_namespace,
)
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import LARGEST_NUMBER
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.records import RestoreStep

AUDIENCE: Final = "credentials.sched.cedana.ai"
"""Of the tokens; the API server's own are for other audiences, so that nobody can use one that he was shown."""
MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of a pod that a kubelet made."""

_POD_NAME, _POD_UID, _NODE_NAME = (
    f"authentication.kubernetes.io/{name}" for name in ("pod-name", "pod-uid", "node-name")
)


class Refused(Exception):  # noqa: N818  # no error of ours: what is answered to a node
    """Why nothing is given; `status` is how it is answered."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


class Caller(msgspec.Struct, frozen=True):
    """An agent's pod, as its token says; `node` is empty where the API server does not write that into tokens."""

    pod: str
    uid: str
    node: str = ""


class Labelled(msgspec.Struct, frozen=True, rename=api_name):
    """An object's metadata, as far as is read here: its annotations are whole."""

    name: str = ""
    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class PlacedSpec(msgspec.Struct, frozen=True, rename=api_name):
    node_name: str = ""


class PodState(msgspec.Struct, frozen=True):
    phase: str = ""


class PlacedPod(msgspec.Struct, frozen=True):
    """A pod, as far as it says where it is and whose."""

    metadata: Labelled
    spec: PlacedSpec = PlacedSpec()
    status: PodState = PodState()


Number = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_NUMBER)]


class Numbered(msgspec.Struct, frozen=True):
    """An order or an answer."""

    number: Number


class OrderStatus(msgspec.Struct, frozen=True):
    step: str = ""
    order: Numbered | None = None
    answer: Numbered | None = None


class OrderSpec(msgspec.Struct, frozen=True, rename=api_name):
    first_order: Numbered | None = None
    namespace_uid: str = ""


class Ordered(msgspec.Struct, frozen=True):
    """A Checkpoint or a Restore, as far as it says to whom an order stands in it, and whether it is answered."""

    metadata: Labelled
    spec: OrderSpec = OrderSpec()
    status: OrderStatus = OrderStatus()


def caller_of(reviewed: Reviewed, account: str) -> Caller:
    """The agent's pod that has shown the token.

    Args:
        reviewed: what the API server says of the token, asked for `AUDIENCE`.
        account: the agents' ServiceAccount, as `system:serviceaccount:<namespace>:<name>`.

    Raises:
        Refused: it is no token of one.
    """
    if not reviewed.authenticated:
        raise Refused(HTTPStatus.UNAUTHORIZED, "the token is none, has expired, or its pod is gone")
    if AUDIENCE not in reviewed.audiences:
        raise Refused(HTTPStatus.UNAUTHORIZED, f"the token is not for {AUDIENCE}")
    if reviewed.user.username != account:
        raise Refused(HTTPStatus.FORBIDDEN, "only agents get credentials, by their own ServiceAccount")
    pod, uid, node = (_only(reviewed.user.extra, key) for key in (_POD_NAME, _POD_UID, _NODE_NAME))
    if not pod or not uid:
        raise Refused(HTTPStatus.FORBIDDEN, "the token is bound to no pod")
    return Caller(pod, uid, node)


def node_of(caller: Caller, pod: PlacedPod | None) -> str:
    """The node that the agent is on.

    Raises:
        Refused: its pod is not there any more, or somewhere else.
    """
    if pod is None or pod.metadata.uid != caller.uid or not pod.spec.node_name:
        raise Refused(HTTPStatus.FORBIDDEN, f"the agent's pod {caller.pod} is not there any more")
    if caller.node and caller.node != pod.spec.node_name:
        raise Refused(HTTPStatus.FORBIDDEN, f"the agent's pod {caller.pod} is on another node than its token says")
    return pod.spec.node_name


def name_wanted(namespace: str) -> str:
    """The name, in Kubernetes, of what the store calls so.

    Raises:
        Refused: nothing is called so.
    """
    try:
        return name_of_namespace(validate_namespace(namespace))
    except UsageError:
        raise Refused(HTTPStatus.BAD_REQUEST, "no namespace is called so") from None


def require_current(namespace: str, uid: str | None, shared: Collection[str]) -> None:
    """Nothing is given of a namespace that is not the one that has the name now.

    Args:
        namespace: as the store calls it, and `name_wanted` took it.
        uid: of the namespace that has that name now; None: there is none.
        shared: see `identity.is_shared`.

    Raises:
        Refused: it is another one, or none.
    """
    name = name_of_namespace(namespace)
    if uid is None:
        raise Refused(HTTPStatus.FORBIDDEN, f"there is no namespace {name}")
    kept = name if is_shared(name, shared) else namespace_of_uid(name, uid)
    if namespace != kept:
        raise Refused(HTTPStatus.FORBIDDEN, f"the store keeps what is saved in namespace {name} under another name")


def require_business(node: str, namespace: str, pods: Iterable[PlacedPod], orders: Iterable[Ordered]) -> None:
    """A node gets credentials of a namespace of which it has a protected pod or an order.

    Args:
        node: see `node_of`.
        namespace: as the store calls it; see `require_current`.
        pods: of that namespace.
        orders: Checkpoints and Restores of that namespace.

    Raises:
        Refused: it has none.
    """
    name, uid = name_of_namespace(namespace), uid_of_namespace(namespace)
    mine = (one for one in orders if may_be_one_namespace(one.spec.namespace_uid, uid))
    if not any(_is_there(pod, node) for pod in pods) and not any(_stands(one, node) for one in mine):
        why = f"no protected pod of namespace {name} is on node {node}, and no order about it is to be answered there"
        raise Refused(HTTPStatus.FORBIDDEN, why)


def require_turn(node: str, namespace: str, turns: Iterable[CollectionTurn]) -> None:
    """A node gets credentials that only collect a namespace's garbage while it has the turn.

    Args:
        node: see `node_of`.
        namespace: as the store calls it. There may be no such namespace any more.
        turns: those that are not over.

    Raises:
        Refused: it has not.
    """
    if not any((one.node, one.namespace) == (node, namespace) for one in turns):
        raise Refused(HTTPStatus.FORBIDDEN, f"it is not the turn of node {node} to collect namespace {namespace}")


def _is_there(pod: PlacedPod, node: str) -> bool:
    return (
        pod.spec.node_name == node
        and pod.metadata.labels.get(names.PROTECTED) == "true"
        and MIRROR not in pod.metadata.annotations
        and pod.status.phase not in {"Succeeded", "Failed"}
    )


def _stands(one: Ordered, node: str) -> bool:
    labels, status = one.metadata.labels, one.status
    given = status.order or one.spec.first_order
    if labels.get(names.NODE) != node or labels.get(names.ARCHIVED) == "true" or given is None:
        return False
    return status.step != RestoreStep.ENDED and (status.answer is None or status.answer.number < given.number)


def _only(extra: Mapping[str, tuple[str, ...]], key: str) -> str:
    """The one value; a claim with several is none that the API server makes."""
    values = extra.get(key, ())
    return values[0] if len(values) == 1 else ""
