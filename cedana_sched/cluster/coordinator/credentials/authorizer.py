"""Reads from the API server the evidence for a request for credentials; for each request, without watch or cache.

Agents fetch credentials of a namespace about twice an hour; a refused agent requests them again whenever it retries
the operation that needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from http import HTTPStatus
from typing import Final

from cedana_sched.cluster.collection_turns import CollectionTurn, CollectionTurns
from cedana_sched.cluster.coordinator.credentials import authorization_rules
from cedana_sched.cluster.coordinator.credentials.authorization_rules import CredentialsRefused, PlacedPod
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import CHECKPOINTS, CONFIG_MAPS, NAMESPACES, PODS, RESTORES
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.token_review import LONGEST_TOKEN, review_token
from cedana_sched.model.objects import names
from cedana_sched.store.credential_client import CredentialRequest

_AT_ONCE: Final = 8
_MOST_WAITING: Final = 256


class CredentialAuthorizer:
    """Decides requests by the API server's objects.

    Args:
        api: may create TokenReviews, and read namespaces, pods, Checkpoints, Restores and the ConfigMap of turns.
        namespace: of our own components.
        account: name of the agents' ServiceAccount there.
        shared: see `authorization_rules.require_current_namespace`.
        turns: name of the ConfigMap there with the collection turns; None: there are none.
    """

    def __init__(
        self, api: Api, namespace: str, account: str, shared: Collection[str], turns: str | None = None
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._account = f"system:serviceaccount:{namespace}:{account}"
        self._shared = frozenset(shared)
        self._turns = turns
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    async def authorize_node(self, token: str, request: CredentialRequest) -> str:
        """Return the node of the token's owner, if it is an agent with pods or orders in the namespace.

        Args:
            token: from the request.
            request: the wanted credentials.

        Raises:
            Refused: no credentials are granted.
            ApiError: the API server cannot answer now.
        """
        if not token or len(token) > LONGEST_TOKEN:
            raise CredentialsRefused(HTTPStatus.UNAUTHORIZED, "no token was shown")
        if self._waiting >= _MOST_WAITING:
            raise CredentialsRefused(HTTPStatus.TOO_MANY_REQUESTS, "too many calls at once")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._authorize_by_evidence(token, request)
        finally:
            self._waiting -= 1

    async def _authorize_by_evidence(self, token: str, request: CredentialRequest) -> str:
        caller = authorization_rules.authenticate_caller(
            await review_token(self._api, token, [authorization_rules.AUDIENCE]), self._account
        )
        node = authorization_rules.verified_node_of(
            caller, await self._api.find(PODS, caller.pod, self._namespace, into=PlacedPod)
        )
        name = authorization_rules.kubernetes_namespace_of(request.namespace)
        if request.collecting:
            authorization_rules.require_collection_turn(node, request.namespace, await self._unexpired_turns())
            return node
        found = await self._api.find(NAMESPACES, name, into=PartialObject)
        authorization_rules.require_current_namespace(
            request.namespace, found.metadata.uid if found is not None else None, self._shared
        )
        pods, orders = await self._list_protected_pods(node, name), await self._list_orders_on_node(node, name)
        authorization_rules.require_pod_or_order(node, request.namespace, pods, orders)
        return node

    async def _unexpired_turns(self) -> tuple[CollectionTurn, ...]:
        if self._turns is None:
            return ()
        found = await self._api.find(CONFIG_MAPS, self._turns, self._namespace, into=CollectionTurns)
        return found.unexpired_turns(SERVER_TIME.seconds()) if found is not None else ()

    async def _list_protected_pods(self, node: str, name: str) -> tuple[PlacedPod, ...]:
        query = {"labelSelector": f"{names.PROTECTED}=true", "fieldSelector": f"spec.nodeName={node}"}
        return (await self._api.list_all(PODS, name, query, into=PlacedPod))[0]

    async def _list_orders_on_node(self, node: str, name: str) -> tuple[OrderedObject, ...]:
        query = {"labelSelector": names.orders_selector(node)}
        checkpoints, _ = await self._api.list_all(CHECKPOINTS, name, query, into=OrderedObject)
        restores, _ = await self._api.list_all(RESTORES, name, query, into=OrderedObject)
        return (*checkpoints, *restores)
