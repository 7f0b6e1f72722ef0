"""A whole replica over HTTP, from its start to its end."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from cedana_sched.component.callers import Callers, secret_segment_of
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.resources import SECRETS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.testing import FakeApi
from cedana_sched_volcano.extender import server
from cedana_sched_volcano.extender.address_secret import DERIVED_FROM, AddressKeeper
from cedana_sched_volcano.extender.claims import Claims
from cedana_sched_volcano.extender.configuration import Configuration
from cedana_sched_volcano.extender.main import serve
from cedana_sched_volcano.extender.metrics import Metrics
from cedana_sched_volcano.extender.pod_states_interface import ProtectedPodState
from cedana_sched_volcano.extender.server import extender_application
from tests.unit.adapters.volcano.extender.extender_builders import KnownPods, question, task

SECRET, OTHER_SECRET = "5e" * 32, "0f" * 32
SEGMENT = secret_segment_of(SECRET, DERIVED_FROM)
CALLS = "cedana_sched_volcano_extender_requests_total"
STRANGERS = "cedana_sched_volcano_extender_unauthenticated_requests_total"
ASKED = question(task("ml-0", "ml"), [task("a", "x", node="n")])


class RunningPods(KnownPods):
    """As the real holder: it must list first, and runs until it is cancelled."""

    def __init__(self, **standings: ProtectedPodState) -> None:
        super().__init__(**standings)
        self.is_synced, self.unsynced_reason, self.ended = False, "pods are being listed", False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def test_from_the_start_to_the_end() -> None:
    settings = Configuration(
        namespace="ours", port=free_port(), operations_port=free_port(), drain_seconds=0.2, victim_steering=True
    )
    holding, stop, metrics = RunningPods(a=ProtectedPodState(may_go=False)), asyncio.Event(), Metrics()
    api = FakeApi()
    address = AddressKeeper(api, settings.secret, "ours", metrics.address_problems, SERVER_TIME.now)
    url, operations = f"http://127.0.0.1:{settings.port}", f"http://127.0.0.1:{settings.operations_port}"
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(settings, holding, address, metrics, stop))
        async with aiohttp.ClientSession() as client:

            async def ask(path: str, body: bytes = ASKED) -> tuple[int, Any, str | None]:
                async with client.post(f"{url}{path}", data=body) as answer:
                    text = await answer.text()
                    read = json.loads(text) if answer.content_type == "application/json" else text
                    return answer.status, read, answer.headers.get("Connection")

            async def ready() -> int:
                async with client.get(f"{operations}/readyz") as answer:
                    return answer.status

            async with asyncio.timeout(60):
                while not _listens(settings.operations_port):  # noqa: ASYNC110  # as the kubelet does
                    await asyncio.sleep(0)
            assert _listens(settings.port), "whoever may be called ready listens"
            assert await ready() == 503
            holding.is_synced = True
            assert await ready() == 503, "nobody can be known yet"
            holding.is_synced = False
            api.put(SECRETS, {"metadata": {"name": settings.secret, "namespace": "ours"}})
            async with asyncio.timeout(60):
                while not address.callers.has_secret:  # noqa: ASYNC110  # all is in memory
                    await asyncio.sleep(0)
            data = api.stored(SECRETS, settings.secret, "ours")["data"]
            url = f"{url}/{base64.b64decode(data['segment']).decode()}"
            assert (await ask("/reclaimable"))[0] == 503  # who is protected is not known yet
            assert holding.told == []
            holding.is_synced = True
            assert await ready() == 200
            assert await ask("/reclaimable") == (200, {"status": 1, "victims": []}, None)
            assert holding.told[-1][1].way == "reclaim"
            holding.standings["a"] = ProtectedPodState(may_go=True)
            status, answered, _ = await ask("/reclaimable")
            assert (status, [victim["UID"] for victim in answered["victims"]]) == (200, ["a"])
            assert (await ask("/preemptable"))[0] == 200
            assert (await ask("/preemptable", b"garbage"))[0] == 400
            assert (await ask("/anything"))[0] == 404
            async with client.get(f"{operations}/metrics") as answer:
                told = await answer.text()
            assert 'extender_requests_total{action="preempt",decision="unreadable"} 1.0' in told
            assert 'extender_requests_total{action="reclaim",decision="not-ready"} 1.0' in told
            assert 'extender_evictees_total{action="reclaim",allowed="true"} 1.0' in told
            assert 'extender_duration_seconds_count{action="reclaim"} 2.0' in told
            assert "extender_preemptors 1.0" in told
            stop.set()
            await asyncio.sleep(0)
            assert await ready() == 503
            assert (await ask("/reclaimable"))[2] == "close"
        await serving
    assert holding.ended
    assert not _listens(settings.port)


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def known() -> Callers:
    callers = Callers()
    callers.set_secret(SECRET)
    return callers


@asynccontextmanager
async def replica(
    holder: KnownPods | None = None,
    metrics: Metrics | None = None,
    callers: Callers | None = None,
    *,
    seconds: float = 20,
) -> AsyncIterator[str]:
    """The address of one that answers, without the secret part."""
    application = extender_application(
        holder or KnownPods(), Claims(lambda: 0.0), asyncio.Event(), metrics or Metrics(), callers or known(),
        timeout_seconds=seconds,
    )  # fmt: skip
    async with serve_http(application, 0, host="127.0.0.1") as port:
        yield f"http://127.0.0.1:{port}"


def counted(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_a_defect_is_an_error_of_the_server_and_counted() -> None:
    class Broken(KnownPods):
        def state_of(self, pod_uid: str) -> ProtectedPodState | None:
            raise RuntimeError(pod_uid)

    metrics = Metrics()
    async with (
        replica(Broken(), metrics) as url,
        aiohttp.ClientSession() as client,
        client.post(f"{url}/{SEGMENT}/preemptable", data=ASKED) as answer,
    ):
        assert answer.status == 500
    assert counted(metrics, CALLS, action="preempt", decision="failed") == 1


async def test_a_node_full_of_large_pods_is_read() -> None:
    evictees = [task(f"pod-{number}", "x", node="n", filler=17_000) for number in range(500)]
    body = question(task("e", "e"), evictees)
    async with (
        replica() as url,
        aiohttp.ClientSession() as client,
        client.post(f"{url}/{SEGMENT}/preemptable", data=io.BytesIO(body)) as answer,
    ):
        assert answer.status == 200
        assert len((await answer.json())["victims"]) == 500


async def sent_in_parts() -> AsyncIterator[bytes]:
    """So that its length is not said before."""
    yield ASKED[:10]
    yield ASKED[10:]


@pytest.mark.parametrize("body", [ASKED, sent_in_parts], ids=["length said", "no length said"])
async def test_a_question_that_is_too_long_is_counted(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONGEST_REQUEST_BYTES", len(ASKED) - 1)
    metrics = Metrics()
    async with (
        replica(metrics=metrics) as url,
        aiohttp.ClientSession() as client,
        client.post(f"{url}/{SEGMENT}/preemptable", data=body() if callable(body) else body) as answer,
    ):
        assert answer.status == 413
    assert counted(metrics, CALLS, action="preempt", decision="unreadable") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/preemptable",
        "/reclaimable",
        "//reclaimable",
        f"/{OTHER_SECRET}/reclaimable",
        f"/{SECRET}/reclaimable",
        f"/{secret_segment_of(SECRET, '/reclaimable')}/reclaimable",
        f"/{SEGMENT[:-1]}/reclaimable",
        f"/%ff{SEGMENT}/reclaimable",
        f"/{SEGMENT}",
        f"/{SEGMENT}/anything",
        "/",
    ],
)
async def test_who_does_not_know_the_address_has_nobody_frozen_and_is_told_nothing(path: str) -> None:
    holder, metrics = KnownPods(a=ProtectedPodState(may_go=False)), Metrics()
    async with replica(holder, metrics) as url, aiohttp.ClientSession() as client:
        for method in ("POST", "GET"):
            async with client.request(method, f"{url}{path}", data=ASKED) as answer:
                assert (answer.status, await answer.read()) == (404, b"")
    assert (holder.told, holder.looked) == ([], [])
    assert counted(metrics, STRANGERS) == 2


async def test_nobody_is_answered_before_there_is_an_address() -> None:
    holder = KnownPods(a=ProtectedPodState(may_go=False))
    async with replica(holder, callers=Callers()) as url, aiohttp.ClientSession() as client:
        for segment in ("", "x", secret_segment_of("", DERIVED_FROM)):
            async with client.post(f"{url}/{segment}/reclaimable", data=ASKED) as answer:
                assert answer.status == 404
    assert holder.told == []


async def test_what_says_that_it_is_too_long_is_refused_before_it_is_sent() -> None:
    async with replica() as url, asyncio.timeout(60):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        length = server.LONGEST_REQUEST_BYTES + 1
        head = f"POST /{SEGMENT}/reclaimable HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readline()).split()[1] == b"413"
        writer.close()


@pytest.mark.parametrize("bound", ["calls", "bytes"])
async def test_who_finds_all_places_taken_is_told_so_at_once_and_the_next_is_answered(
    bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = 5
    if bound == "calls":
        monkeypatch.setattr(server, "AT_ONCE", places)
        monkeypatch.setattr(server, "BYTES_AT_ONCE", 1 << 40)
    else:
        monkeypatch.setattr(server, "BYTES_AT_ONCE", places * server.LONGEST_REQUEST_BYTES)
    metrics, taken, ended = Metrics(), asyncio.Queue[None](), asyncio.Event()

    async def unfinished() -> AsyncIterator[bytes]:
        """Of no length that is said before."""
        yield ASKED[:10]
        taken.put_nowait(None)
        await ended.wait()
        yield ASKED[10:]

    async with replica(metrics=metrics) as url, aiohttp.ClientSession() as client, asyncio.timeout(60):

        async def ask(body: Any) -> tuple[int, str | None]:
            async with client.post(f"{url}/{SEGMENT}/reclaimable", data=body) as answer:
                await answer.read()
                return answer.status, answer.headers.get("Connection")

        slow = [asyncio.ensure_future(ask(unfinished())) for _ in range(places)]
        for _ in slow:
            await taken.get()
        while (said := await ask(ASKED))[0] == 200:  # the slow ones are on their way
            pass
        assert said == (503, "close"), "the next one may come to another replica"
        assert not any(one.done() for one in slow), "nobody was waited for"
        ended.set()
        assert [status for status, _ in await asyncio.gather(*slow)] == [200] * places
        assert (await ask(ASKED))[0] == 200
    assert counted(metrics, CALLS, action="reclaim", decision="busy") == 1


async def test_who_sends_more_slowly_than_a_scheduler_waits_gives_his_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, places = Metrics(), server.BYTES_AT_ONCE // server.LONGEST_REQUEST_BYTES
    monkeypatch.setattr(server, "AT_ONCE", places)

    async def unfinished() -> AsyncIterator[bytes]:
        yield ASKED[:10]
        await asyncio.Event().wait()

    async with (
        replica(metrics=metrics, seconds=0.05) as url,
        aiohttp.ClientSession() as client,
        asyncio.timeout(60),
    ):

        async def ask() -> int:
            async with client.post(f"{url}/{SEGMENT}/reclaimable", data=unfinished()) as answer:
                return answer.status

        assert await asyncio.gather(*(ask() for _ in range(places))) == [408] * places
        async with client.post(f"{url}/{SEGMENT}/reclaimable", data=ASKED) as answer:
            assert answer.status == 200
    assert counted(metrics, CALLS, action="reclaim", decision="unreadable") == places
