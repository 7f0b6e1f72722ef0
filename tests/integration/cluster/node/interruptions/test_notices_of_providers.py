"""Notices of a provider's metadata server reach the node, and leave it: AWS, GCP and Azure as they answer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from cedana_sched.cluster.configuration import InterruptionsConfiguration
from cedana_sched.cluster.node.interruptions import (
    aws_notices,
    azure_notices,
    configured_monitoring,
    gcp_notices,
    interruption_monitor,
)
from cedana_sched.cluster.node.interruptions.configured_monitoring import monitor_interruptions
from cedana_sched.cluster.node.interruptions.metadata_server import (
    MetadataError,
    MetadataServer,
    MetadataUnavailableError,
)
from cedana_sched.cluster.node.interruptions.provider_detection import detect_provider
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.model.objects.node_interruption import InterruptionKind, InterruptionSource, NodeInterruption
from cedana_sched.retrying import Profile
from tests.servers.metadata import FakeAws, FakeAzure, FakeGcp, FakeMetadataServer

SOON = Profile(min=0.001, multiplier=0.001, max=0.01)
AT, AT_TEXT = "2126-11-28T10:02:00.000+00:00", "2126-11-28T10:02:00Z"
AT_HTTP = "Thu, 28 Nov 2126 10:02:00 GMT"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption_monitor, "AWAITED", SOON)
    monkeypatch.setattr(configured_monitoring, "CHORES", SOON)
    monkeypatch.setattr(aws_notices, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(azure_notices, "POLL_SECONDS", 0.01)


class Node:
    """What is published on it, one after the other."""

    def __init__(self) -> None:
        self.published: asyncio.Queue[NodeInterruption | None] = asyncio.Queue()
        self.refusals = 0
        self.has_pods = True

    async def publish(self, interruption: NodeInterruption | None) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ApiUnavailableError("no answer")
        self.published.put_nowait(interruption)

    async def read_published(self) -> NodeInterruption | None:
        return None

    async def look_for_pods(self) -> bool:
        return self.has_pods

    async def next(self) -> NodeInterruption | None:
        return await asyncio.wait_for(self.published.get(), 60)


@contextlib.asynccontextmanager
async def monitored(server: FakeMetadataServer, provider: str) -> AsyncIterator[Node]:
    """An agent that watches a server, which is already up."""
    node = Node()
    configuration = InterruptionsConfiguration.model_validate({"provider": provider, "metadataUrl": server.url})
    running = asyncio.create_task(
        monitor_interruptions(configuration, node.publish, node.read_published, node.look_for_pods)
    )
    try:
        yield node
        assert not running.done()
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_an_interruption_of_aws() -> None:
    server = FakeAws()
    async with server.serve(), monitored(server, "aws") as node:
        assert await node.next() is None
        server.rebalance = {"noticeTime": "2026-11-28T09:50:00Z"}
        risk = await node.next()
        assert risk is not None
        assert (risk.kind, risk.not_before, risk.ends_node) == (InterruptionKind.RISK, None, False)
        server.instance_action = {"action": "terminate", "time": AT_TEXT}
        notice = await node.next()
        assert notice is not None
        assert (notice.source, notice.kind, notice.not_before) == (
            InterruptionSource.AWS,
            InterruptionKind.TERMINATION,
            AT,
        )
        server.instance_action = None
        assert await node.next() == risk
        server.rebalance = None
        assert await node.next() is None
    assert server.requests.count(("PUT", "/latest/api/token")) == 1, "one token for all"


async def test_a_token_of_aws_that_expires() -> None:
    server = FakeAws()
    async with server.serve(), monitored(server, "aws") as node:
        assert await node.next() is None
        server.tokens.clear()  # as after a stop and a start
        server.instance_action = {"action": "stop", "time": AT_TEXT}
        notice = await node.next()
        assert notice is not None
        assert notice.not_before == AT


async def test_a_token_is_renewed_before_it_expires() -> None:
    server, seconds = FakeAws(), [0.0]
    async with server.serve(), MetadataServer.open(server.url) as metadata:
        imds = aws_notices.ImdsV2(metadata, lambda: seconds[0])
        for seconds[0] in (0, 10_000, 21_539):
            await imds.get(aws_notices.REBALANCE_PATH)
        assert len(server.tokens) == 1
        seconds[0] = 21_540
        await imds.get(aws_notices.REBALANCE_PATH)
        assert len(server.tokens) == 2
        server.faults += [lambda: web.Response(status=401), server.token, lambda: web.Response(status=403)]
        with pytest.raises(MetadataError, match="answers 403"):
            await imds.get(aws_notices.REBALANCE_PATH)


async def test_a_preemption_by_gcp_is_read_at_once() -> None:
    server = FakeGcp()
    async with server.serve(), monitored(server, "gcp") as node:
        assert await node.next() is None
        await server.wait_watched()
        count = len(server.requests)
        await server.set("preempted", "TRUE")
        notice = await node.next()
        assert notice is not None
        assert (notice.source, notice.kind) == (InterruptionSource.GCP, InterruptionKind.TERMINATION)
        assert notice.ends_at is not None
        assert notice.ends_at - datetime.fromisoformat(notice.observed).timestamp() == 30
        assert len(server.requests) - count <= 2, "it waits, and does not poll"


async def test_maintenance_of_gcp_that_is_cancelled() -> None:
    server = FakeGcp()
    async with server.serve(), monitored(server, "gcp") as node:
        assert await node.next() is None
        await server.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE")  # loses nothing
        await server.wait_watched()
        await server.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
        notice = await node.next()
        assert notice is not None
        assert (notice.kind, notice.not_before) == (InterruptionKind.MAINTENANCE, None)
        await server.set("maintenance-event", "NONE")
        assert await node.next() is None


async def test_a_value_that_gcp_holds_unchanged_is_requested_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcp_notices, "WAIT_SECONDS", 0.01)
    server = FakeGcp()
    async with server.serve(), monitored(server, "gcp") as node:
        assert await node.next() is None
        await server.wait_requests(10)
        assert node.published.empty()
        await server.set("preempted", "TRUE")
        assert await node.next() is not None
        await server.wait_requests(10)
        assert node.published.empty(), "its time does not move"


async def test_events_of_azure_for_this_machine() -> None:
    server = FakeAzure()
    server.announce("Preempt", "aks-spot-1_7", event="of a neighbour", not_before=AT_HTTP)
    server.announce("Freeze", event="a pause", not_before=AT_HTTP)
    async with server.serve(), monitored(server, "azure") as node:
        assert await node.next() is None
        server.announce("Redeploy", event="later", not_before="Thu, 28 Nov 2126 10:20:00 GMT")
        later = await node.next()
        assert later is not None
        assert (later.source, later.kind) == (InterruptionSource.AZURE, InterruptionKind.MAINTENANCE)
        server.announce("Preempt", "aks-spot-1_7", server.name, event="sooner", not_before=AT_HTTP)
        notice = await node.next()
        assert notice is not None
        assert (notice.kind, notice.not_before) == (InterruptionKind.TERMINATION, AT)
        await server.wait_requests(5)
        assert server.approved == [], "pods are left"
        server.withdraw()
        assert await node.next() is None


async def test_an_event_of_azure_is_approved_once_no_pods_are_left() -> None:
    server = FakeAzure()
    server.announce("Preempt", event="mine", not_before=AT_HTTP)
    server.announce("Reboot", server.name, "aks-spot-1_7", event="of two machines", not_before=AT_HTTP)
    async with server.serve(), monitored(server, "azure") as node:
        assert await node.next() is not None
        await server.wait_requests(3)
        assert server.approved == []
        node.has_pods = False
        notice = await node.next()
        assert server.approved == ["mine"], "the other machine may still save its pods"
        assert notice is not None
        assert notice.not_before is None, "it has started"
        await server.wait_requests(5)
        assert server.approved == ["mine"], "once"


@pytest.mark.parametrize(
    ("make", "provider"),
    [
        (FakeAws, InterruptionSource.AWS),
        (FakeGcp, InterruptionSource.GCP),
        (FakeAzure, InterruptionSource.AZURE),
    ],
)
async def test_the_provider_is_detected(make: Callable[[], FakeMetadataServer], provider: InterruptionSource) -> None:
    server = make()
    async with server.serve(), MetadataServer.open(server.url) as metadata:
        assert await detect_provider(metadata) is provider
        server.faults.append(lambda: web.Response(status=503))
        with pytest.raises(MetadataError, match="answers 503"):
            await detect_provider(metadata)


class OpenStack(FakeMetadataServer):
    """It answers paths of AWS, without tokens."""

    async def answer(self, request: web.Request) -> web.Response:
        return web.Response(text="instance-id\n") if request.method == "GET" else web.Response(status=405)


async def test_a_server_of_another_cloud_is_none_of_them() -> None:
    server = OpenStack()
    async with server.serve(), monitored(server, "auto") as node:
        assert await node.next() is None
    assert len(server.requests) == 3, "one of each provider"


async def test_a_machine_without_a_provider() -> None:
    server = FakeAws()
    async with server.serve():
        pass  # the port is closed
    async with monitored(server, "auto") as node:
        assert await node.next() is None


async def test_without_configuration_nothing_is_requested() -> None:
    server = FakeAws()
    async with server.serve(), monitored(server, "none") as node:
        assert await node.next() is None, "what an earlier configuration has left is removed"
    assert server.requests == []


async def test_a_provider_is_detected_once_its_server_is_up() -> None:
    server = FakeAws()
    async with server.serve():
        server.instance_action = {"action": "terminate", "time": AT_TEXT}
        server.faults += [lambda: web.Response(status=503), lambda: web.Response(status=429)]
        async with monitored(server, "auto") as node:
            assert await node.next() is not None


FAULTS: dict[str, Callable[[], web.Response]] = {
    "failure": lambda: web.Response(status=500),
    "redirect": lambda: web.Response(status=307, headers={"Location": "http://127.0.0.1:9/elsewhere"}),
    "refused": lambda: web.Response(status=403),
    "deep": lambda: web.Response(text="[" * 50_000),
    "huge": lambda: web.Response(text=f'{{"time": "{"x" * 300_000}"}}'),
    "cut": lambda: web.Response(text='{"action": "terminate"'),
    "no time": lambda: web.Response(text='{"time": "99999-01-01", "noticeTime": ""}'),
    "overflow": lambda: web.Response(text='{"time": "0001-01-01T00:00:00+23:59", "noticeTime": "1"}'),
    "list": lambda: web.Response(text='["terminate"]'),
    "bytes": lambda: web.Response(body=b"\xff\xfe"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_leaves_the_notice_and_is_logged_once(fault: str) -> None:
    server = FakeAws()
    server.instance_action = {"action": "terminate", "time": AT_TEXT}
    async with server.serve(), monitored(server, "aws") as node:
        assert await node.next() is not None
        await server.wait_requests(4)
        with capture_logs() as logs:
            server.faults += [FAULTS[fault]] * 12
            await server.wait_requests(20)
        assert node.published.empty()
    failed = [entry for entry in logs if entry["event"] == "notices not read, trying again"]
    assert {entry["log_level"] for entry in failed} == {"warning"}, "foreseen"
    assert 1 <= len(failed) <= 2, "once for each watch"
    assert [entry for entry in logs if entry["event"] == "notices are read again"]


async def test_a_redirect_is_not_followed() -> None:
    server, elsewhere = FakeAws(), FakeAws()
    async with elsewhere.serve(), server.serve(), MetadataServer.open(server.url) as metadata:
        to = {"Location": f"{elsewhere.url}/latest/api/token"}
        server.faults.append(lambda: web.Response(status=307, headers=to))
        assert (await metadata.request("/latest/api/token", {}, method="PUT")).status == 307
    assert elsewhere.requests == []


async def test_a_server_that_is_gone_for_a_while() -> None:
    server = FakeAws()
    server.instance_action = {"action": "terminate", "time": AT_TEXT}
    async with server.serve():
        running = monitored(server, "aws")
        node = await running.__aenter__()
        notice = await node.next()
        await server.wait_requests(4)
    assert node.published.empty(), "silence is no withdrawal"
    server.instance_action = None
    async with server.serve():
        assert notice is not None
        assert await node.next() is None
        await running.__aexit__(None, None, None)


async def test_a_server_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with MetadataServer.open(url) as metadata:
            with pytest.raises(MetadataUnavailableError, match=r"no answer within 0\.05 s"):
                await metadata.request("/", {}, seconds=0.05)


async def test_a_defect_does_not_end_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    server, parse = FakeAws(), aws_notices.parse_rebalance
    defects = [ZeroDivisionError()] * 3

    def defective(*answer: Any) -> NodeInterruption | None:
        if defects:
            raise defects.pop()
        return parse(*answer)

    monkeypatch.setattr(aws_notices, "parse_rebalance", defective)
    async with server.serve(), monitored(server, "aws") as node:
        assert await node.next() is None
    assert defects == []


async def test_an_api_server_that_does_not_answer() -> None:
    server = FakeAws()
    async with server.serve(), monitored(server, "aws") as node:
        assert await node.next() is None
        node.refusals = 2
        server.instance_action = {"action": "terminate", "time": AT_TEXT}
        assert await node.next() is not None
