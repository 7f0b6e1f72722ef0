"""The certificate with which credentials are given: one for all replicas, and trusted before it is served."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from cedana_sched.cluster.coordinator.credentials.certificate import AUTHORITIES, CertificateKeeper
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.kube.resources import CONFIG_MAPS, SECRETS
from cedana_sched.testing import FakeApi
from cedana_sched_webhooks.certificates import AUTHORITY_LIFE, CERTIFICATE_LIFE, expiry_of_certificate
from cedana_sched_webhooks.tls import ServingCertificate

NAME, OURS = "cedana-sched-credentials", "ours"
EMPTY = {"metadata": {"name": NAME, "namespace": OURS}}


class Installation:
    """What the chart makes, and replicas that come and go."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.time = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]
        self._tasks: list[asyncio.Task[None]] = []
        for resource in (SECRETS, CONFIG_MAPS):
            self.api.put(resource, EMPTY)

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[CredentialMetrics]:
        metrics = CredentialMetrics(CollectorRegistry())
        serving = ServingCertificate(metrics)
        names = (f"{NAME}.{OURS}.svc",)
        task = asyncio.create_task(
            CertificateKeeper(self.api, NAME, OURS, names, serving, metrics, lambda: self.time[0]).run()
        )
        self._tasks.append(task)
        try:
            yield metrics
        finally:
            self._tasks.remove(task)
            task.cancel()
            await asyncio.wait([task])

    def secret(self, key: str) -> bytes:
        return base64.b64decode((self.api.stored(SECRETS, NAME, OURS) or {}).get("data", {}).get(key, ""))

    def published(self) -> bytes:
        stored = self.api.stored(CONFIG_MAPS, NAME, OURS) or {}
        return str(stored.get("data", {}).get(AUTHORITIES, "")).encode()

    def is_trusted(self) -> bool:
        return bool(self.published()) and self.published() == self.secret("ca.crt")

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # all is in memory: each turn of the loop is progress
                for task in self._tasks:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0)

    def pass_time(self, by: dt.timedelta) -> None:
        """And make the replicas look, as their timers would."""
        self.time[0] += by
        self.api.put(CONFIG_MAPS, self.api.stored(CONFIG_MAPS, NAME, OURS))


def served(metrics: CredentialMetrics) -> float:
    return float(metrics.certificate_expiry._value.get())


async def test_replicas_serve_one_certificate_whose_authority_is_published() -> None:
    there = Installation()
    async with there.replica() as first, there.replica() as second:
        await there.until(lambda: there.is_trusted() and served(first) and served(second))
        assert served(first) == served(second) == expiry_of_certificate(there.secret("tls.crt")).timestamp()
    stored = there.api.stored(CONFIG_MAPS, NAME, OURS)["data"]
    assert set(stored) == {AUTHORITIES}
    assert b"PRIVATE" not in there.published()


async def test_a_replica_that_comes_later_serves_the_same() -> None:
    there = Installation()
    async with there.replica():
        await there.until(there.is_trusted)
    before = list(there.api.traffic.writes)
    async with there.replica() as late:
        await there.until(lambda: served(late))
    assert there.api.traffic.writes == before


async def test_it_is_renewed_while_it_is_served() -> None:
    there = Installation()
    async with there.replica() as replica:
        await there.until(there.is_trusted)
        before = there.secret("tls.crt")
        there.pass_time(CERTIFICATE_LIFE * 0.7)
        await there.until(lambda: there.secret("tls.crt") != before)
        await there.until(lambda: served(replica) == expiry_of_certificate(there.secret("tls.crt")).timestamp())


async def test_a_new_authority_is_published_before_it_issues() -> None:
    there = Installation()
    async with there.replica():
        await there.until(there.is_trusted)
        old = there.secret("ca.crt")
        there.pass_time(AUTHORITY_LIFE * 0.7)
        await there.until(lambda: there.secret("ca.crt") != old and there.is_trusted())
        assert there.published().endswith(old)
        served_before = there.secret("tls.crt")
        there.pass_time(dt.timedelta(minutes=11))
        await there.until(lambda: there.secret("tls.crt") != served_before)


async def test_what_somebody_emptied_or_spoilt_is_mended() -> None:
    there = Installation()
    async with there.replica() as replica:
        await there.until(there.is_trusted)
        there.api.put(CONFIG_MAPS, EMPTY)
        await there.until(there.is_trusted)
        before = there.secret("ca.crt")
        spoilt = base64.b64encode(b"\xff no certificate").decode()
        data = there.api.stored(SECRETS, NAME, OURS)["data"]
        there.api.put(SECRETS, EMPTY | {"data": data | {"ca.crt": spoilt}})
        await there.until(replica.certificate_problems._value.get)
        assert there.published() == before
        there.api.put(SECRETS, EMPTY)
        await there.until(lambda: there.is_trusted() and there.published() != before)


async def test_a_secret_that_is_gone_is_told_and_taken_when_it_comes_back() -> None:
    there = Installation()
    there.api.remove(SECRETS, NAME, OURS)
    async with there.replica() as replica:
        await there.until(replica.certificate_problems._value.get)
        there.api.put(SECRETS, EMPTY)
        await there.until(there.is_trusted)
