"""Metadata servers of AWS, GCP and Azure in as much as notices of interruption go; they answer as documented.

Sources: Amazon EC2 User Guide, "Use the Instance Metadata Service"; Compute Engine documentation, "Wait for change";
Azure documentation, "Azure Metadata Service: Scheduled Events for Linux VMs".
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105  # a header's name


class FakeMetadataServer:
    """`faults` are answered first; `requests` are what was requested."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Callable[[], web.Response]] = []
        self.answered = asyncio.Condition()

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path))
        answer = self.faults.pop(0)() if self.faults else await self.answer(request)
        async with self.answered:
            self.answered.notify_all()
        return answer

    async def answer(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    async def wait_requests(self, count: int) -> None:
        """Return once this many more requests were answered."""
        wanted = len(self.requests) + count
        async with self.answered:
            await self.answered.wait_for(lambda: len(self.requests) >= wanted)

    @contextlib.asynccontextmanager
    async def serve(self, listener: socket.socket | None = None) -> AsyncIterator[str]:
        """On this socket; or on loopback, at the same port each time."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        site = web.SockSite(runner, listener) if listener else web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            await runner.cleanup()


class FakeAws(FakeMetadataServer):
    """IMDSv2; what is None is no path. Tokens that are not in `tokens` have expired."""

    def __init__(self) -> None:
        super().__init__()
        self.instance_action: Any = None
        self.rebalance: Any = None
        self.tokens: set[str] = set()
        self._numbers = itertools.count(1)

    def token(self) -> web.Response:
        """Grant another token."""
        token = f"AQAEA-{next(self._numbers)}=="
        self.tokens.add(token)
        return web.Response(text=token, headers={TTL: "21600"})

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/latest/api/token":
            if request.method != "PUT" or not 1 <= int(request.headers.get(TTL, "0")) <= 21_600:
                return web.Response(status=400)
            return self.token()
        if request.headers.get(TOKEN) not in self.tokens:
            return web.Response(status=401)
        found = {
            "/latest/meta-data/spot/instance-action": self.instance_action,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }.get(request.path)
        return web.Response(status=404) if found is None else web.json_response(found, content_type="text/plain")


class FakeGcp(FakeMetadataServer):
    """Each value has an etag; a request with the current one waits for another value."""

    def __init__(self) -> None:
        super().__init__()
        self._values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self._changed = asyncio.Condition()
        self.waiting = 0

    async def set(self, name: str, value: str) -> None:
        async with self._changed:
            self._values[name] = value
            self._changed.notify_all()

    def etag(self, name: str) -> str:
        return f"{abs(hash((name, self._values[name]))):016x}"

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        folder, _, name = request.path.rpartition("/")
        if folder != "/computeMetadata/v1/instance" or name not in self._values:
            return web.Response(status=404, headers={"Metadata-Flavor": "Google"})
        if request.query.get("wait_for_change") == "true" and request.query.get("last_etag") == self.etag(name):
            last = self.etag(name)
            async with self._changed:
                self.waiting += 1
                self._changed.notify_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(float(request.query["timeout_sec"])):
                        await self._changed.wait_for(lambda: self.etag(name) != last)
                self.waiting -= 1
        return web.Response(text=self._values[name], headers={"Metadata-Flavor": "Google", "ETag": self.etag(name)})

    async def wait_watched(self) -> None:
        """Return once both values are being waited for."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.waiting >= len(self._values))


class FakeAzure(FakeMetadataServer):
    """Scheduled Events of one machine and its neighbours; `approved` are the events that were started early."""

    def __init__(self, name: str = "aks-spot-1_3") -> None:
        super().__init__()
        self.name = name
        self.incarnation = 1
        self.events: list[dict[str, Any]] = []
        self.approved: list[str] = []

    def announce(self, kind: str, *machines: str, event: str = "E-1", not_before: str = "") -> None:
        self.incarnation += 1
        status = "Scheduled" if not_before else "Started"
        self.events.append(
            {
                "EventId": event,
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(machines or (self.name,)),
                "EventStatus": status,
                "NotBefore": not_before,
                "Description": "Virtual machine is being moved.",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )

    def withdraw(self) -> None:
        self.incarnation += 1
        self.events.clear()

    async def answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Metadata") != "true":
            return web.json_response({"error": "Bad request. Required metadata header not specified"}, status=400)
        if request.path == "/metadata/instance/compute" and "api-version" in request.query:
            return web.json_response({"name": self.name, "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6", "tags": ""})
        if request.path != "/metadata/scheduledevents" or request.query.get("api-version") != "2020-07-01":
            return web.json_response({"error": "Not found"}, status=404)
        if request.method == "POST":
            started = [one["EventId"] for one in (await request.json())["StartRequests"]]
            for event in self.events:
                if event["EventId"] in started:
                    event.update(EventStatus="Started", NotBefore="")
            self.approved += started
            return web.Response()
        return web.json_response({"DocumentIncarnation": self.incarnation, "Events": self.events})
