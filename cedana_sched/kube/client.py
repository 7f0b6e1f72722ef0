"""Client of one API server: typed reads, untyped writes. kubernetes-asyncio loads and renews the credentials.

Responses are decoded straight into the caller's msgspec structs, not into client models: a hundred times faster, and
fields that no component reads are skipped.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import ConfigException

from cedana_sched.kube.credentials import load_credentials
from cedana_sched.kube.errors import (
    AbsentError,
    ApiUnavailableError,
    ConflictError,
    NotServedError,
    UnreadableError,
    decoded,
    error_of,
)
from cedana_sched.kube.resources import NODES, PODS, Resource
from cedana_sched.kube.server_time import SERVER_TIME

FIELD_MANAGER: Final = "cedana-sched"
REQUEST_SECONDS = 30.0
CONNECTIONS = 200
PAGE_SIZE = 500
"""Objects per page of a list; fewer where objects are large."""
PAGE_BYTES = 8 << 20
"""Bytes of a list that are in memory at a time, unless one object is larger."""
_STEP = 4
"""Factor by which the page size shrinks or grows."""
_BUFFER_BYTES = 2 << 20
"""Read buffer; larger than a line of a watch, which is one object, of up to 1.5 MiB in etcd."""

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

T = TypeVar("T")

_VERSION_PATH: Final = "/version"
_AUDIT_ID: Final = "Audit-Id"
"""Header set by the API server itself, not by a load balancer in front of it: `WithAuditInit` in k8s.io/apiserver's
pkg/endpoints/filters sets it."""
_APPLY = "application/apply-patch+yaml"
_WHOLE = "application/json"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_MERGE = "application/merge-patch+json"
_JSON = "application/json-patch+json"


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ServerVersion(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


class _KubeletConfigz(msgspec.Struct, frozen=True):
    kubeletconfig: dict[str, Any] = {}


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None
    """None also for an empty list: a PartialObjectMetadataList without items has `null`."""


class Api:
    """A client with one identity's permissions.

    Every method raises `ApiError` when the API server refuses the request, and `ApiUnavailableError` when it is
    unreachable or the response is not an API server's. After a 401, `renew` reloads the credentials and the request is
    retried once.
    """

    def __init__(self, client: ApiClient, renew: Callable[[], Awaitable[None]] | None = None) -> None:
        self._client = client
        self._renew = renew
        self._session = _session(client)

    @classmethod
    @asynccontextmanager
    async def open(cls, kubeconfig: str | None = None, *, context: str | None = None) -> AsyncIterator[Api]:
        """Open a client as the pod's ServiceAccount; by a kubeconfig if it or a context is named, or no account is.

        Raises:
            UsageError: there is neither.
        """
        configuration = Configuration()
        renew = await load_credentials(configuration, kubeconfig, context)
        configuration.connection_pool_maxsize = CONNECTIONS
        # many clusters' certificates lack an authority key identifier, which Python requires since 3.13
        configuration.disable_strict_ssl_verification = True
        async with ApiClient(configuration) as client:
            yield cls(client, renew)

    async def version(self) -> str:
        """Return the API server's version, such as `v1.36.2`; cloud providers append a suffix."""
        return decoded(f"GET {_VERSION_PATH}", await self._call("GET", _VERSION_PATH), _ServerVersion).git_version

    async def get(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T:
        path = resource.path(namespace, name)
        return decoded(f"GET {path}", await self._call("GET", path), into)

    async def find(self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]) -> T | None:
        """Return the object, or None if it does not exist."""
        try:
            return await self.get(resource, name, namespace, into=into)
        except AbsentError:
            return None

    async def find_metadata(
        self, resource: Resource, name: str, namespace: str | None = None, *, into: type[T]
    ) -> T | None:
        """Return the object's metadata, or None if it does not exist; the data of a Secret is not transferred."""
        path = resource.path(namespace, name)
        try:
            return decoded(f"GET {path}", await self._call("GET", path, accept=_METADATA), into)
        except AbsentError:
            return None

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        """Create an object; raises AlreadyExistsError if the name is taken."""
        path = resource.path(body["metadata"].get("namespace"))
        return decoded(f"POST {path}", await self._call("POST", path, self._with_type_fields(resource, body)), into)

    async def create_dry(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        """What would be stored, after admission; nothing is."""
        path, query = resource.path(body["metadata"].get("namespace")), {"dryRun": "All"}
        return decoded(
            f"POST {path}", await self._call("POST", path, self._with_type_fields(resource, body), query=query), into
        )

    async def update(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        """Replace an object. With `metadata.resourceVersion` set, raises ConflictError if another writer was first."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return decoded(f"PUT {path}", await self._call("PUT", path, self._with_type_fields(resource, body)), into)

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: Object | list[Object],
        *,
        subresource: str | None = None,
    ) -> None:
        """Apply a merge patch (an object) or a JSON patch (a list).

        `metadata.uid` and `metadata.resourceVersion` in a merge patch are preconditions: raises ConflictError.
        """
        path, kind = resource.path(namespace, name, subresource), _JSON if isinstance(patch, list) else _MERGE
        if not isinstance(patch, list):
            _check_preconditions(f"PATCH {path}", patch)
        await self._call("PATCH", path, patch, content_type=kind)

    async def apply(
        self, resource: Resource, body: Object, *, manager: str = FIELD_MANAGER, subresource: str | None = None
    ) -> None:
        """Server-side apply: create the object, or own the fields of `body` and drop those owned before."""
        metadata = body["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"], subresource)
        _check_preconditions(f"PATCH {path}", body)
        query = {"fieldManager": manager, "force": "true"}
        await self._call("PATCH", path, self._with_type_fields(resource, body), content_type=_APPLY, query=query)

    async def delete(
        self, resource: Resource, name: str, namespace: str | None = None, *, uid: str | None = None
    ) -> None:
        """Delete the object if it exists; `uid` is a precondition."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        try:
            path = resource.path(namespace, name)
            if uid is not None:
                _check_preconditions(f"DELETE {path}", {"metadata": {"uid": uid}})
                options["preconditions"] = {"uid": uid}
            await self._call("DELETE", path, options)
        except AbsentError:
            return

    async def evict(self, name: str, namespace: str, *, uid: str) -> None:
        """Evict a pod through `pods/eviction`, as its PodDisruptionBudget allows; `uid` is a precondition.

        Raises:
            AbsentError: there is no such pod.
            ConflictError: another pod has its name.
            ApiUnavailableError: with status 429, its budget does not allow it now.
        """
        path = PODS.path(namespace, name, "eviction")
        options: Object = {"preconditions": {"uid": uid}}
        eviction: Object = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": options,
        }
        await self._call("POST", path, eviction)

    async def read_kubelet_configuration(self, node: str) -> dict[str, Any]:
        """Return the configuration of a node's running kubelet, as JSON; its fields are those of KubeletConfiguration.

        Raises:
            AbsentError: there is no such node.
            ApiUnavailableError: the API server does not answer, or does not reach the kubelet.
        """
        path = NODES.path(None, node, "proxy") + "/configz"
        return decoded(f"GET {path}", await self._call("GET", path), _KubeletConfigz).kubeletconfig

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: type[T]
    ) -> tuple[tuple[T, ...], str]:
        """Return all objects of a kind, in all namespaces or one, and the resource version at which a watch can start.

        Raises:
            UnreadableError: an object cannot be decoded.
        """
        found: list[T] = []
        item = msgspec.json.Decoder(into)

        def see(body: msgspec.Raw) -> None:
            try:
                found.append(item.decode(body))
            except (ValueError, RecursionError) as error:
                path = resource.path(namespace)
                raise UnreadableError(f"GET {path}: one of the objects cannot be read: {error}") from error

        version = await self.list_each(resource, namespace, query, see)
        return tuple(found), version

    async def list_each(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str] | None,
        see: Callable[[msgspec.Raw], None],
        *,
        only_metadata: bool = False,
    ) -> str:
        """Stream each object to `see`, keeping none; return the resource version at which a watch can start.

        A page that is too large is requested again with fewer objects. The continue token names a key and a version,
        and no number of objects (Kubernetes, apiserver/pkg/storage/continue.go).
        """
        path, limit, parameters = resource.path(namespace), PAGE_SIZE, dict(query or {})
        while True:
            most_bytes = PAGE_BYTES if limit > 1 else math.inf
            body = await self._page(path, {**parameters, "limit": str(limit)}, most_bytes, only_metadata=only_metadata)
            if body is None:
                limit = max(1, limit // _STEP)
                parameters.pop("resourceVersion", None)  # the API server's watch cache serves every list unpaged
                continue
            shown = _pass_page_objects(path, body, see)
            if not shown.continue_:
                return shown.resource_version
            parameters["continue"] = shown.continue_
            parameters.pop("resourceVersion", None)  # a continued list has the version of its first page
            if len(body) * _STEP < PAGE_BYTES // 2:
                limit = min(limit * _STEP, PAGE_SIZE)

    async def stream(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        *,
        silent_seconds: float,
        only_metadata: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the API server ends it.

        Raises:
            ApiUnavailableError: the connection broke, or was silent for `silent_seconds`.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_SECONDS, sock_read=silent_seconds)
        path = resource.path(namespace)
        accept = _METADATA if only_metadata else _WHOLE
        answer = await self._request("GET", path, query={**query, "watch": "true"}, timeout=timeout, accept=accept)
        rest = b""
        try:
            async for chunk, _ in answer.content.iter_chunks():  # a line may exceed the reader's limit
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(f"watch of {path} broke off: {error!r}") from error
        finally:
            _abort_response(answer)

    def _with_type_fields(self, resource: Resource, body: Object) -> Object:
        return {"apiVersion": resource.group_version, "kind": resource.kind, **body}

    async def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        accept: str = _WHOLE,
    ) -> bytes:
        if method != "GET":
            query = {"fieldManager": FIELD_MANAGER, **(query or {})}
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            answer = await self._request(
                method, path, query=query or {}, body=body, content_type=content_type, accept=accept, timeout=timeout
            )
        except NotServedError as error:
            # an API server that has just started may not serve the kind yet: the object must not count as deleted
            remedy = "it is tried again; install the kind, if it is not"
            raise ApiUnavailableError(error.message, status=404, remedy=remedy) from error
        try:
            return bytes(await answer.read())
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(f"{method} {path}: its answer broke off: {error!r}") from error

    async def _page(
        self, path: str, query: Mapping[str, str], most_bytes: float, *, only_metadata: bool
    ) -> bytes | None:
        """Fetch one page of a list; None if the page is larger than `most_bytes`, and then the rest is not read."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        accept = _METADATA_LIST if only_metadata else _WHOLE
        answer, body = await self._request("GET", path, query=query, timeout=timeout, accept=accept), bytearray()
        try:
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    _abort_response(answer)
                    return None
        except (aiohttp.ClientError, OSError) as error:
            raise ApiUnavailableError(f"GET {path}: its answer broke off: {error!r}") from error
        return bytes(body)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: object = None,
        content_type: str = "application/json",
        accept: str = _WHOLE,
    ) -> aiohttp.ClientResponse:
        call, data = f"{method} {path}", None if body is None else msgspec.json.encode(body)
        url = f"{self._client.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        is_renewed = self._renew is None
        while True:
            try:
                headers = {"Accept": accept, "Content-Type": content_type}
                await self._client.update_params_for_auth(headers, [], ["BearerToken"])
                sent = SERVER_TIME.request_start_time()
                answer = await self._session.request(method, url, headers=headers, data=data, timeout=timeout)
                if _AUDIT_ID in answer.headers:
                    SERVER_TIME.record_response(answer.headers.get("Date"), sent)
                if answer.status < 400:
                    return answer
                error = error_of(call, answer.status, await answer.read())
                if answer.status != 401 or is_renewed or self._renew is None:
                    raise error
                is_renewed = True
                await self._renew()
            except (aiohttp.ClientError, OSError, ConfigException) as error:  # also an unreadable token
                raise ApiUnavailableError(f"{call}: {error!r}", remedy="it is tried again") from error


def _check_preconditions(call: str, body: Object) -> None:
    """Refuse an empty precondition: the API server ignores it, although the object meant is unknown.

    Raises:
        ConflictError: naming the field.
    """
    metadata = body.get("metadata") or {}
    for field in ("uid", "resourceVersion"):
        if metadata.get(field) == "":
            raise ConflictError(f"{call}: metadata.{field} is empty, and holds of no object", status=409)


def _session(client: ApiClient) -> aiohttp.ClientSession:
    """Return a session on the connection pool of the client's own session, which closes the pool.

    The client's session uses two further threads before every request: for a netrc, whose passwords are not meant for
    an API server, and for a proxy, which does not change at run time.
    """
    connector = client.rest_client.pool_manager.connector
    proxy = _proxy(client.configuration)
    return aiohttp.ClientSession(connector=connector, connector_owner=False, proxy=proxy, read_bufsize=_BUFFER_BYTES)


def _proxy(configuration: Configuration) -> str | None:
    """Return the kubeconfig's proxy (`proxy-url`), else the environment's."""
    if configuration.proxy:
        return str(configuration.proxy)
    server = urlsplit(str(configuration.host))
    return None if proxy_bypass(server.hostname or "") else getproxies().get(server.scheme)


def _pass_page_objects(path: str, body: bytes, see: Callable[[msgspec.Raw], None]) -> _ListMeta:
    """Pass each object of a page to `see`; no part of the page stays in memory afterwards.

    Raises:
        ApiUnavailableError: the body is not a list, so no object of the kind is to blame.
    """
    try:
        page = decoded(f"GET {path}", body, _Page)
    except UnreadableError as error:
        raise ApiUnavailableError(f"GET {path}: the answer is no list: {error.message}", status=200) from error
    for item in page.items or ():
        see(item)
    return page.metadata


def _abort_response(answer: aiohttp.ClientResponse) -> None:
    """Abort a stream at once: a TLS shutdown may outlive the event loop."""
    connection = answer.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    answer.close()
