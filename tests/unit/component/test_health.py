"""What probes and Prometheus are answered."""

from __future__ import annotations

import aiohttp
from prometheus_client import CollectorRegistry, Counter

from cedana_sched.component.health import Ready, serve_health


async def test_a_component_is_ready_when_nothing_is_awaited_and_says_what_is() -> None:
    awaited: dict[str, str] = {"node": "it is being prepared"}
    ready: dict[str, Ready] = {"node": lambda: awaited.get("node"), "certificate": lambda: None}
    registry = CollectorRegistry()
    Counter("preemptions", "As an example.", registry=registry).inc()
    async with serve_health(0, ready, registry, host="127.0.0.1") as port, aiohttp.ClientSession() as client:

        async def ask(path: str) -> tuple[int, str]:
            async with client.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        assert await ask("/healthz") == (200, "ok\n")
        assert await ask("/readyz") == (503, "node: it is being prepared\n")
        awaited.clear()
        assert await ask("/readyz") == (200, "ok\n")
        assert "preemptions_total 1.0" in (await ask("/metrics"))[1]
