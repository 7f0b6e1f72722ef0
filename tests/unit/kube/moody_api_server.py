"""An API server over real HTTP that keeps objects, tells watches, and answers everybody badly while it has a mood."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from aiohttp import web

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.resources import Resource
from cedana_sched.testing.patches import merge
from tests.unit.kube.served_api import client_of

Mood = int | str
"""An HTTP status, or one of `ODDITIES`."""
ODDITIES: Final = ("page", "broken-json", "other-json", "nothing", "reset", "not-served", "error-line", "garbled-line")
MOODS: Final[tuple[Mood, ...]] = (400, 401, 403, 404, 409, 410, 422, 429, 500, 502, 503, 504, *ODDITIES)

_PAGE = b"<html><body>Bad gateway</body></html>"
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired"}


class MoodyApiServer:
    """`bad` counts bad answers by plural, `watching` open watches by path and selectors."""

    def __init__(self) -> None:
        self.mood: Mood | None = None
        self.bad: Counter[str] = Counter()
        self.watching: Counter[str] = Counter()
        self.objects: dict[str, Object] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        """Called when it falls into a mood."""
        self.tokens: list[str] = []
        self._streams: dict[asyncio.Queue[Object], web.Request] = {}
        self._history: list[tuple[str, Object]] = []
        """Path and event; the version of each is its position, from 1."""
        self._changed = asyncio.Event()

    # -- what tests do

    def put(self, resource: Resource, body: Object) -> None:
        """Create or replace an object, and tell it."""
        metadata = body["metadata"]
        self._store(resource.path(metadata.get("namespace"), metadata["name"]), body)

    def fall_into(self, mood: Mood | None) -> None:
        """From now on everybody is answered so; watches that are open break."""
        self.mood = mood
        self.bad.clear()
        if mood is not None:
            for request in tuple(self._streams.values()):
                _abort(request)
            self.meanwhile()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is so; looked at after every answer."""
        try:
            async with asyncio.timeout(60):
                while not holds():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"not so: bad answers {self.bad}, watches {+self.watching}") from None

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Api]:
        """A client of it, inside the block."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        async with client_of(application, connections=200) as api:
            yield api

    # -- what clients see

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        try:
            if self.mood is not None:
                self.bad[_plural(request.path)] += 1
                return await self._badly(request, self.mood)
            if "watch" in request.query:
                return await self._watch(request)
            return await self._well(request)
        finally:
            self._changed.set()

    async def _badly(self, request: web.Request, mood: Mood) -> web.StreamResponse:
        if isinstance(mood, int):
            status = {"kind": "Status", "code": mood, "reason": _REASONS.get(mood, ""), "message": f"answers {mood}"}
            return web.json_response(status, status=mood)
        match mood:
            case "page":
                return web.Response(body=_PAGE, content_type="text/html")
            case "broken-json":
                return web.Response(body=b'{"metadata": {"resourceVersion": "1"}, "items": [{"meta')
            case "other-json":
                return web.json_response({"kind": "Status", "status": "Success"})
            case "nothing":
                return web.Response()
            case "not-served":
                return web.Response(status=404, text="404 page not found\n")
            case "error-line" if "watch" in request.query:
                return web.Response(body=b'{"type": "ERROR", "object": {"kind": "Status", "code": "five", "x": []}}\n')
            case "garbled-line" if "watch" in request.query:
                return web.Response(body=b'{"type": "MODIFIED", "object": {"metadata": 7}}\n{"type": \xff\n')
            case "reset":
                _abort(request)
            case _:
                return await self._well(request)
        return web.Response()

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response, queue = web.StreamResponse(), asyncio.Queue[Object]()
        query = {name: request.query[name] for name in ("labelSelector", "fieldSelector") if name in request.query}
        key = f"{request.path}?{query}"
        await response.prepare(request)
        for path, event in self._history[int(request.query["resourceVersion"]) :]:
            if _is_in(path, request.path):
                queue.put_nowait(event)
        self._streams[queue] = request
        self.watching[key] += 1
        self._changed.set()
        try:
            with suppress(ConnectionResetError):
                while True:
                    await response.write(msgspec.json.encode(await queue.get()) + b"\n")
        finally:
            del self._streams[queue]
            self.watching[key] -= 1
            self._changed.set()
        return response

    async def _well(self, request: web.Request) -> web.Response:
        path, body = request.path, await request.read()
        sent: Any = msgspec.json.decode(body) if body else None
        if path == "/version":
            return web.json_response({"gitVersion": "v1.36.2"})
        stored = self.objects.get(path.removesuffix("/status"))
        if request.method == "GET" and _is_collection(path):
            items = [one for name, one in self.objects.items() if _is_in(name, path)]
            return web.json_response({"metadata": {"resourceVersion": str(len(self._history))}, "items": items})
        if request.method == "POST":
            return web.json_response(self._store(f"{path}/{sent['metadata']['name']}", sent), status=201)
        if stored is None:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        if request.method == "PUT":
            stored = self._store(path, sent)
        elif request.method == "PATCH" and isinstance(sent, dict):
            merge(stored, sent)
            stored = self._store(path.removesuffix("/status"), stored)
        return web.json_response(stored)

    def _store(self, path: str, body: Object) -> Object:
        version = str(len(self._history) + 1)
        before = self.objects.get(path)
        uid = body["metadata"].get("uid") or (before["metadata"]["uid"] if before else f"uid-{version}")
        stored = {**body, "metadata": {**body["metadata"], "uid": uid, "resourceVersion": version}}
        self.objects[path] = stored
        event = {"type": "MODIFIED" if before else "ADDED", "object": stored}
        self._history.append((path, event))
        for queue, request in self._streams.items():
            if _is_in(path, request.path):
                queue.put_nowait(event)
        self._changed.set()
        return stored


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _parts(path: str) -> list[str]:
    """Namespace (or nothing), plural, name, as far as they are there."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:] or parts
    return parts[1:] if parts[0] == "namespaces" and len(parts) > 2 else ["", *parts]


def _plural(path: str) -> str:
    return _parts(path)[1]


def _is_collection(path: str) -> bool:
    return len(_parts(path)) == 2


def _is_in(path: str, collection: str) -> bool:
    (namespace, plural, *_), (wanted, kind) = _parts(path), _parts(collection)
    return plural == kind and wanted in {"", namespace}
