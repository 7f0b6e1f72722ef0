"""A whole replica over HTTP, from its start to its end."""

from __future__ import annotations

import asyncio
import io
import json
import socket
from typing import Any

import aiohttp
import pytest

from cedana_sched.service.listening import listening
from cedana_sched_volcano.extender import server
from cedana_sched_volcano.extender.claims import Claims
from cedana_sched_volcano.extender.configuration import Configuration
from cedana_sched_volcano.extender.holder import Standing
from cedana_sched_volcano.extender.main import serve
from cedana_sched_volcano.extender.metrics import Metrics
from cedana_sched_volcano.extender.server import extender_application
from tests.unit.adapters.volcano.extender_builders import KnownPods, question, task

ASKED = question(task("ml-0", "ml"), [task("a", "x", node="n")])


class RunningPods(KnownPods):
    """As the real holder: it must list first, and runs until it is cancelled."""

    def __init__(self, **standings: Standing) -> None:
        super().__init__(**standings)
        self.synced, self.awaited, self.ended = False, "pods are being listed", False

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
    holding, stop = RunningPods(a=Standing(may_go=False)), asyncio.Event()
    url, operations = f"http://127.0.0.1:{settings.port}", f"http://127.0.0.1:{settings.operations_port}"
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(settings, holding, stop))
        async with aiohttp.ClientSession() as client:

            async def ask(path: str, body: bytes = ASKED) -> tuple[int, Any, str | None]:
                async with client.post(f"{url}{path}", data=body) as answer:
                    text = await answer.text()
                    read = json.loads(text) if answer.content_type == "application/json" else text
                    return answer.status, read, answer.headers.get("Connection")

            async def ready() -> int:
                async with client.get(f"{operations}/readyz") as answer:
                    return answer.status

            async with asyncio.timeout(20):
                while not _listens(settings.operations_port):  # noqa: ASYNC110  # as the kubelet does
                    await asyncio.sleep(0)
            assert _listens(settings.port), "whoever may be called ready listens"
            assert await ready() == 503
            assert (await ask("/reclaimable"))[0] == 503  # who is protected is not known yet
            assert holding.told == []
            holding.synced = True
            assert await ready() == 200
            assert await ask("/reclaimable") == (200, {"status": 1, "victims": []}, None)
            assert holding.told[-1][1].way == "reclaim"
            holding.standings["a"] = Standing(may_go=True)
            status, answered, _ = await ask("/reclaimable")
            assert (status, [victim["UID"] for victim in answered["victims"]]) == (200, ["a"])
            assert (await ask("/preemptable"))[0] == 200
            assert (await ask("/preemptable", b"garbage"))[0] == 400
            assert (await ask("/anything"))[0] == 404
            async with client.get(f"{operations}/metrics") as answer:
                metrics = await answer.text()
            assert 'extender_calls_total{action="preempt",decision="unreadable"} 1.0' in metrics
            assert 'extender_calls_total{action="reclaim",decision="not-ready"} 1.0' in metrics
            assert 'extender_evictees_total{action="reclaim",allowed="true"} 1.0' in metrics
            assert 'extender_duration_seconds_count{action="reclaim"} 2.0' in metrics
            assert "extender_preemptors 1.0" in metrics
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


async def test_a_defect_is_an_error_of_the_server_and_counted() -> None:
    class Broken(KnownPods):
        def standing(self, pod_uid: str) -> Standing | None:
            raise RuntimeError(pod_uid)

    metrics = Metrics()
    application = extender_application(Broken(), Claims(lambda: 0.0), asyncio.Event(), metrics)
    async with (
        listening(application, 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{port}/preemptable", data=ASKED) as answer,
    ):
        assert answer.status == 500
    labels = {"action": "preempt", "decision": "failed"}
    assert metrics.registry.get_sample_value("cedana_sched_volcano_extender_calls_total", labels) == 1


async def test_a_node_full_of_large_pods_is_read() -> None:
    evictees = [task(f"pod-{number}", "x", node="n", filler=17_000) for number in range(500)]
    body = question(task("e", "e"), evictees)
    application = extender_application(KnownPods(), Claims(lambda: 0.0), asyncio.Event(), Metrics())
    async with (
        listening(application, 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{port}/preemptable", data=io.BytesIO(body)) as answer,
    ):
        assert answer.status == 200
        assert len((await answer.json())["victims"]) == 500


async def test_a_question_that_is_too_long_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LONGEST_REQUEST_BYTES", len(ASKED) - 1)
    metrics = Metrics()
    application = extender_application(KnownPods(), Claims(lambda: 0.0), asyncio.Event(), metrics)
    async with (
        listening(application, 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as client,
        client.post(f"http://127.0.0.1:{port}/preemptable", data=ASKED) as answer,
    ):
        assert answer.status == 413
    labels = {"action": "preempt", "decision": "unreadable"}
    assert metrics.registry.get_sample_value("cedana_sched_volcano_extender_calls_total", labels) == 1
