"""Reads and writes objects of any kind as plain dictionaries.

kubernetes-asyncio does the transport; kinds are found by the API server's own discovery, so kinds of add-ons need no
code here.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes_asyncio import config
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration

Object = dict[str, Any]
"""A Kubernetes object as its JSON says it."""

FIELD_MANAGER = "tests"
_TYPES = {
    "apply": "application/apply-patch+yaml",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


@dataclass(frozen=True)
class Resource:
    """Where the API server keeps a kind."""

    group_version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str | None = None) -> str:
        base = f"/api/{self.group_version}" if "/" not in self.group_version else f"/apis/{self.group_version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{base}{scope}/{self.plural}" + (f"/{name}" if name else "")


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: Object


class Api:
    """A client of one cluster.

    Every method raises `kubernetes_asyncio.client.ApiException` with the API server's answer when it says no.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._resources: dict[tuple[str, str], Resource] = {}
        self._decode = msgspec.json.Decoder(Event).decode

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: Path) -> AsyncIterator[Api]:
        """A client with the rights of a kubeconfig."""
        configuration = Configuration()
        await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        configuration.connection_pool_maxsize = 100
        async with ApiClient(configuration) as client:
            yield cls(client)

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Where a kind is kept.

        Raises:
            LookupError: the API server does not serve it.
        """
        if (api_version, kind) not in self._resources:
            prefix = "/api/" if "/" not in api_version else "/apis/"
            for entry in (await self.call("GET", f"{prefix}{api_version}"))["resources"]:
                if "/" not in entry["name"]:
                    found = Resource(api_version, entry["name"], entry["namespaced"])
                    self._resources[api_version, entry["kind"]] = found
        try:
            return self._resources[api_version, kind]
        except KeyError:
            raise LookupError(f"the API server serves no {kind} in {api_version}") from None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
    ) -> Object:
        """One request; `path` begins with /api or /apis."""
        answer = await self._request(method, path, query=query, body=body, content_type=content_type)
        return cast("Object", json.loads(await answer.read()))

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        body: object = None,
        content_type: str = "application/json",
        timeout: float | None = 60,
    ) -> Any:
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"])
        answer = await self._client.rest_client.pool_manager.request(
            method,
            url,
            headers=headers,
            data=None if body is None else json.dumps(body),
            timeout=aiohttp.ClientTimeout(total=timeout),
        )
        if answer.status >= 400:
            error = ApiException(status=answer.status, reason=answer.reason)
            error.body = await answer.read()
            raise error
        return answer

    async def _of(self, body: Object, namespace: str | None) -> tuple[Resource, str | None]:
        resource = await self.resource(body["apiVersion"], body["kind"])
        return resource, body["metadata"].get("namespace", namespace)

    async def create(self, body: Object, namespace: str | None = None) -> Object:
        resource, namespace = await self._of(body, namespace)
        return await self.call("POST", resource.path(namespace), body=body, query={"fieldManager": FIELD_MANAGER})

    async def apply(self, body: Object, namespace: str | None = None, *, manager: str = FIELD_MANAGER) -> Object:
        """Create it, or change what `body` names (server-side apply); the fields are `manager`'s then."""
        resource, namespace = await self._of(body, namespace)
        return await self.call(
            "PATCH",
            resource.path(namespace, body["metadata"]["name"]),
            body=body,
            query={"fieldManager": manager, "force": "true"},
            content_type=_TYPES["apply"],
        )

    async def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Object:
        resource = await self.resource(api_version, kind)
        return await self.call("GET", resource.path(namespace, name))

    async def objects(
        self, api_version: str, kind: str, namespace: str | None = None, *, selector: str = ""
    ) -> list[Object]:
        """All objects of a kind, in a namespace or everywhere, that a label selector matches."""
        return (await self._list(api_version, kind, namespace, {"labelSelector": selector}))[0]

    async def _list(
        self, api_version: str, kind: str, namespace: str | None, query: Mapping[str, str]
    ) -> tuple[list[Object], str]:
        resource = await self.resource(api_version, kind)
        answer = await self.call("GET", resource.path(namespace), query=query)
        typed = {"apiVersion": api_version, "kind": kind}
        return [typed | item for item in answer["items"]], answer["metadata"]["resourceVersion"]

    async def patch(
        self,
        api_version: str,
        kind: str,
        name: str,
        patch: object,
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> Object:
        """Apply a merge patch (an object) or a JSON patch (a list)."""
        resource = await self.resource(api_version, kind)
        path = resource.path(namespace, name) + (f"/{subresource}" if subresource else "")
        content_type = _TYPES["json" if isinstance(patch, list) else "merge"]
        return await self.call(
            "PATCH", path, body=patch, query={"fieldManager": FIELD_MANAGER}, content_type=content_type
        )

    async def patch_strategically(
        self, api_version: str, kind: str, name: str, patch: object, namespace: str | None = None
    ) -> Object:
        """Apply a strategic merge patch: elements of lists are found by their keys; only for Kubernetes' own kinds."""
        resource = await self.resource(api_version, kind)
        path = resource.path(namespace, name)
        query = {"fieldManager": FIELD_MANAGER}
        return await self.call("PATCH", path, body=patch, query=query, content_type=_TYPES["strategic"])

    async def delete(
        self, api_version: str, kind: str, name: str, namespace: str | None = None, *, grace: int | None = None
    ) -> None:
        """Delete one object, what depends on it in the background; nothing when it is absent."""
        resource = await self.resource(api_version, kind)
        try:
            await self.call("DELETE", resource.path(namespace, name), body=_delete_options(grace))
        except ApiException as error:
            if error.status != 404:
                raise

    async def delete_all(self, api_version: str, kind: str, namespace: str, *, grace: int | None = None) -> None:
        """Delete all objects of a kind in a namespace."""
        resource = await self.resource(api_version, kind)
        await self.call("DELETE", resource.path(namespace), body=_delete_options(grace))

    async def watch(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        selector: str = "",
        field_selector: str = "",
    ) -> AsyncGenerator[Event, None]:
        """What there is, as a LIST event whose object has `items`; then every change; never ends by itself.

        Another LIST replaces what was known: it comes when the API server has forgotten where a watch was.
        """
        query = {"labelSelector": selector, "fieldSelector": field_selector}
        resource = await self.resource(api_version, kind)
        while True:
            items, version = await self._list(api_version, kind, namespace, query)
            yield Event("LIST", {"items": items})
            answer = await self._request(
                "GET",
                resource.path(namespace),
                query={**query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "false"},
                timeout=None,
            )
            try:
                async for line in _lines(answer.content):
                    event = self._decode(line)
                    if event.type == "ERROR":  # the version is too old by now: list again
                        break
                    yield event
            finally:
                answer.close()


def _delete_options(grace: int | None) -> Object:
    """What depends on it goes in the background; None leaves the object's own grace, in seconds."""
    options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


async def _lines(content: Any) -> AsyncIterator[bytes]:
    """Lines of any length; the stream reader's own limit is 64 KiB."""
    rest = b""
    async for chunk, _ in content.iter_chunks():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
