"""A cluster with one agent, as far as a request for credentials is decided by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from cedana_sched.cluster.coordinator.credentials.authorization_rules import AUDIENCE, CredentialsRefused
from cedana_sched.cluster.coordinator.credentials.authorizer import CredentialAuthorizer
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, Resource
from cedana_sched.kube.token_review import TOKEN_REVIEWS
from cedana_sched.model.objects import names
from cedana_sched.store.credential_client import CredentialRequest

OURS = "cedana-sched"
ACCOUNT = f"system:serviceaccount:{OURS}:cedana-sched-agent"
UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
OLDER = "00000000-7425-40de-944b-e07fc1f90ae7"
MINE = f"research.{UID}"
TURNS = "cedana-sched-collections"
NODE, OTHER_NODE = "node-1", "node-2"
BOUND = "authentication.kubernetes.io"


def protected(node: str = NODE, phase: str = "Running", **annotations: str) -> Object:
    metadata = {"name": "worker", "labels": {names.PROTECTED: "true"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}


def ordered(given: int = 1, answered: int | None = None, node: str = NODE, label: str = "", **more: Any) -> Object:
    labels = {names.NODE: node} | ({label: "true"} if label else {})
    status: Object = {"order": {"number": given}, **more}
    if answered is not None:
        status["answer"] = {"number": answered}
    return {"metadata": {"name": "one", "labels": labels}, "spec": {"uid": "c"}, "status": status}


@dataclass
class Cluster:
    """An API server with one agent, one namespace, and what is in it. It selects nothing: that is no border."""

    tokens: dict[str, Object] = field(default_factory=dict)
    agents: dict[str, Object] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=lambda: {"research": UID, "finance": OLDER})
    objects: dict[tuple[str, str], list[Object]] = field(default_factory=dict)
    queries: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    turns: Object | None = None
    """The ConfigMap."""

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
        elif resource is CONFIG_MAPS:
            assert (name, namespace) == (TURNS, OURS)
            found = self.turns
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

    def evidence(self, shared: tuple[str, ...] = ()) -> CredentialAuthorizer:
        return CredentialAuthorizer(self, OURS, "cedana-sched-agent", shared, TURNS)  # type: ignore[arg-type]  # as much as is called

    def decide(
        self,
        token: str = "good",  # noqa: S107
        namespace: str = MINE,
        shared: tuple[str, ...] = (),
        *,
        collecting: bool = False,
    ) -> str:
        wanted = CredentialRequest(namespace, collecting)
        return asyncio.run(self.evidence(shared).authorize_node(token, wanted))

    def refusal(self, **request: Any) -> HTTPStatus:
        with pytest.raises(CredentialsRefused) as refused:
            self.decide(**request)
        return refused.value.status
