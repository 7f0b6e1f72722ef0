"""Certificates in a Secret that replicas share, and `caBundle`, against an API server in memory."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from cedana_sched.component import callers, secret_reconciler
from cedana_sched.component.callers import FORMER_SECONDS, Callers, secret_segment_of
from cedana_sched.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource
from cedana_sched.testing import FakeApi
from cedana_sched_webhooks import own_certificates
from cedana_sched_webhooks.certificates import AUTHORITY_LIFE, CERTIFICATE_LIFE, expiry_of_certificate
from cedana_sched_webhooks.configuration import OwnCertificates
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.own_certificates import OwnCertificateKeeper
from cedana_sched_webhooks.tls import ServingCertificate
from tests.pauses import shorten_pauses

PATH = "/mutate/pods"
NAMES = OwnCertificates(secret="certificates")  # noqa: S106  # a Secret's name
CONFIGURATIONS = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)


class Replica:
    """A keeper and what it serves; time is set by the test."""

    def __init__(self, api: FakeApi, time: list[dt.datetime]) -> None:
        self.metrics = Metrics()
        self.serving = ServingCertificate(self.metrics)
        self.served: list[bytes] = []
        self.callers = Callers()
        self.keeper = OwnCertificateKeeper(
            api,
            NAMES,
            namespace="ours",
            service_names=("webhooks.ours.svc",),
            serving=self.serving,
            callers=self.callers,
            hooks={"pods": "/mutate/pods", "jobs": "/mutate/jobs"},
            metrics=self.metrics,
            now=lambda: time[0],
        )

    @property
    def problems(self) -> float:
        return self.metrics.registry.get_sample_value("cedana_sched_webhook_certificate_problems_total") or 0.0

    @property
    def expires(self) -> float:
        name = "cedana_sched_webhook_certificate_expiry_timestamp_seconds"
        return self.metrics.registry.get_sample_value(name) or 0.0


class Installation:
    """An API server with the webhook configurations of the chart, and replicas that come and go."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self._tasks: list[asyncio.Task[None]] = []
        self.time = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]
        for resource in CONFIGURATIONS:
            webhooks = [
                {"name": "pods", "clientConfig": {"service": {"name": "x"}}},
                {"name": "jobs", "clientConfig": {}},
            ]
            self.api.put(resource, {"metadata": {"name": "cedana-sched"}, "webhooks": webhooks})

    @asynccontextmanager
    async def replica(self) -> AsyncIterator[Replica]:
        replica = Replica(self.api, self.time)
        task = asyncio.create_task(replica.keeper.run())
        self._tasks.append(task)
        try:
            yield replica
        finally:
            self._tasks.remove(task)
            task.cancel()
            await asyncio.wait([task])

    def secret(self) -> dict[str, bytes]:
        stored = self.api.stored(SECRETS, "certificates", "ours")
        data = (stored or {}).get("data", {})
        return {key: base64.b64decode(value) for key, value in data.items()}

    def bundles(self) -> set[bytes]:
        found = [self.api.stored(resource, "cedana-sched")["webhooks"] for resource in CONFIGURATIONS]
        return {base64.b64decode(one["clientConfig"].get("caBundle", "")) for webhooks in found for one in webhooks}

    def paths(self) -> set[str]:
        """Of the webhooks that are called by a Service."""
        found = [self.api.stored(resource, "cedana-sched")["webhooks"] for resource in CONFIGURATIONS]
        services = [one["clientConfig"].get("service") for webhooks in found for one in webhooks]
        return {service.get("path", "") for service in services if service is not None}

    def word(self) -> str:
        """From which segments are derived."""
        return self.secret().get("callers.key", b"-").decode()

    def path(self) -> str:
        """At which pods are to be reviewed."""
        return f"/{secret_segment_of(self.word(), PATH)}{PATH}"

    def trusts(self) -> bool:
        return self.bundles() == {self.secret().get("ca.crt", b"-")} and self.paths() <= {self.path()}

    async def until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # all is in memory: each turn of the loop is progress
                for task in self._tasks:
                    assert not task.done(), task.exception()
                await asyncio.sleep(0)

    def pass_time(self, by: dt.timedelta) -> None:
        """And make the replicas look, as their timers would."""
        self.time[0] += by
        self.api.repeat_current_state()


def _written(there: Installation) -> list[tuple[str, Resource]]:
    """Verbs and kinds of the writes that were done."""
    return [(one.verb, one.resource) for one in there.api.traffic.writes]


async def test_the_first_replica_makes_them_and_all_serve_them() -> None:
    there = Installation()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(there.replica()) for _ in range(3)]
        await there.until(lambda: all(one.serving.is_loaded for one in replicas) and there.trusts())
        until = expiry_of_certificate(there.secret()["tls.crt"]).timestamp()
        assert {one.expires for one in replicas} == {until}
    assert _written(there).count(("create", SECRETS)) == 1
    assert ("patch", SECRETS) not in _written(there)


async def test_a_replica_that_comes_later_changes_nothing() -> None:
    there = Installation()
    async with there.replica():
        await there.until(there.trusts)
    before = list(there.api.traffic.writes)
    async with there.replica() as late:
        await there.until(lambda: late.serving.is_loaded)
    assert there.api.traffic.writes == before


async def test_a_certificate_is_renewed_while_it_is_served() -> None:
    there = Installation()
    async with there.replica() as first, there.replica() as second:
        await there.until(lambda: there.trusts() and second.serving.is_loaded)
        before, authority = there.secret()["tls.crt"], there.secret()["ca.crt"]
        there.pass_time(CERTIFICATE_LIFE * 0.7)
        await there.until(lambda: there.secret()["tls.crt"] != before)
        until = expiry_of_certificate(there.secret()["tls.crt"]).timestamp()
        await there.until(lambda: first.expires == second.expires == until)
        assert there.secret()["ca.crt"] == authority
    assert _written(there).count(("patch", SECRETS)) == 1


async def test_a_new_authority_is_in_every_bundle_before_it_issues() -> None:
    there = Installation()
    async with there.replica() as replica, there.replica():
        await there.until(there.trusts)
        old = there.secret()
        there.pass_time(AUTHORITY_LIFE * 0.7)
        await there.until(lambda: there.secret()["ca.crt"] != old["ca.crt"] and there.trusts())
        both = there.secret()
        assert both["ca.crt"].endswith(old["ca.crt"])
        there.pass_time(dt.timedelta(minutes=11))
        await there.until(lambda: there.secret()["tls.crt"] != both["tls.crt"])
        assert there.bundles() == {both["ca.crt"]}
        until = expiry_of_certificate(there.secret()["tls.crt"]).timestamp()
        await there.until(lambda: replica.expires == until)


async def test_what_somebody_emptied_is_filled_again() -> None:
    there = Installation()
    async with there.replica() as replica:
        await there.until(there.trusts)
        bare = there.api.stored(MUTATING_WEBHOOKS, "cedana-sched")
        there.api.put(MUTATING_WEBHOOKS, {**bare, "webhooks": [{"name": "pods", "clientConfig": {}}]})
        await there.until(there.trusts)
        there.api.remove(SECRETS, "certificates", "ours")
        await there.until(lambda: there.secret() and there.trusts())
        metadata = {"name": "certificates", "namespace": "ours", "labels": {"the": "chart's"}}
        there.api.put(SECRETS, {"metadata": metadata})
        await there.until(lambda: there.secret() and there.trusts())
        assert there.api.stored(SECRETS, "certificates", "ours")["metadata"]["labels"] == {"the": "chart's"}
        until = expiry_of_certificate(there.secret()["tls.crt"]).timestamp()
        await there.until(lambda: replica.expires == until)


async def test_configurations_that_are_not_installed_are_no_obstacle() -> None:
    there = Installation()
    for resource in CONFIGURATIONS:
        there.api.remove(resource, "cedana-sched")
    async with there.replica() as replica:
        await there.until(lambda: replica.serving.is_loaded)
    assert _written(there) == [("create", SECRETS)]


@pytest.mark.parametrize("refused", [SECRETS, MUTATING_WEBHOOKS])
async def test_a_write_that_is_refused_is_counted_and_tried_again(
    refused: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(secret_reconciler, "SHORTEST_WAIT_SECONDS", 0.001)
    there = Installation()
    there.api.traffic.refusing[refused] = 403
    async with there.replica() as replica:
        await there.until(lambda: replica.problems >= 2)
        there.api.traffic.refusing.clear()
        await there.until(there.trusts)


async def test_a_damaged_secret_is_said_and_what_is_served_stays() -> None:
    there = Installation()
    async with there.replica() as replica:
        await there.until(there.trusts)
        good = there.api.stored(SECRETS, "certificates", "ours")
        there.api.put(SECRETS, {**good, "data": {**good["data"], "tls.key": base64.b64encode(b"x").decode()}})
        await there.until(lambda: replica.problems >= 1)
        assert replica.serving.is_loaded
        there.api.put(SECRETS, {**good, "data": {**good["data"], "tls.key": "%"}})
        await there.until(lambda: replica.problems >= 2)


async def test_all_replicas_know_the_segment_by_which_they_are_called() -> None:
    there = Installation()
    async with there.replica() as first, there.replica() as second:
        await there.until(there.trusts)
        segment = secret_segment_of(there.word(), PATH)
        await there.until(lambda: first.callers.is_known(segment, PATH) and second.callers.is_known(segment, PATH))
        assert len(there.word()) >= 43
        assert there.word() not in str(there.paths()), "the API server may tell a tenant what it calls"
        assert there.paths() == {there.path()}
        assert "service" not in there.api.stored(MUTATING_WEBHOOKS, "cedana-sched")["webhooks"][1]["clientConfig"]


async def test_a_segment_stays_through_an_upgrade_and_comes_to_an_older_installation() -> None:
    there = Installation()
    async with there.replica():
        await there.until(there.trusts)
        before = there.secret()
        for resource in CONFIGURATIONS:  # a chart that names paths, as an older one did
            stored = there.api.stored(resource, "cedana-sched")
            named = [{**one, "clientConfig": {"service": {"path": PATH}}} for one in stored["webhooks"][:1]]
            there.api.put(resource, {**stored, "webhooks": named})
        await there.until(there.trusts)
        assert there.secret() == before
        stored = there.api.stored(SECRETS, "certificates", "ours")
        data = {name: value for name, value in stored["data"].items() if name != "callers.key"}
    there.api.put(SECRETS, {**stored, "data": data})
    async with there.replica():
        await there.until(lambda: "callers.key" in there.secret() and there.trusts())
        assert there.secret() == {**before, "callers.key": there.secret()["callers.key"]}


async def test_a_path_that_somebody_else_has_written_is_replaced_and_never_believed() -> None:
    """Whatever else stands in the Secret: a tenant may know what an API server has once called."""
    there, other = Installation(), "o" * 43
    async with there.replica():
        await there.until(there.trusts)
    stored = there.api.stored(SECRETS, "certificates", "ours")
    there.api.put(SECRETS, {**stored, "data": {**stored["data"], "path": base64.b64encode(other.encode()).decode()}})
    for resource in CONFIGURATIONS:
        configuration = there.api.stored(resource, "cedana-sched")
        for one in configuration["webhooks"]:
            if "service" in one["clientConfig"]:
                one["clientConfig"]["service"]["path"] = f"/{other}{PATH}"
        there.api.put(resource, configuration)
    async with there.replica() as replica:
        await there.until(there.trusts)
        assert replica.callers.has_secret
        assert not replica.callers.is_known(other, PATH)


@pytest.mark.parametrize("written", [b"", b"short", b"with/a/slash" * 4, b"\xff" * 40])
async def test_what_cannot_be_a_secret_is_replaced(written: bytes) -> None:
    there = Installation()
    async with there.replica() as replica:
        await there.until(there.trusts)
        stored = there.api.stored(SECRETS, "certificates", "ours")
        data = {**stored["data"], "callers.key": base64.b64encode(written).decode()}
        there.api.put(SECRETS, {**stored, "data": data})
        await there.until(lambda: there.secret()["callers.key"] != written)
        await there.until(lambda: replica.callers.is_known(secret_segment_of(there.word(), PATH), PATH))


async def test_a_new_segment_is_known_to_all_before_it_is_used_and_the_old_one_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_certificates, "LONGEST_SETTLING", dt.timedelta(0))
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(secret_reconciler, "SHORTEST_WAIT_SECONDS", 0.001)
    there, seconds = Installation(), [1000.0]
    async with there.replica() as replica:
        replica.callers._clock = lambda: seconds[0]
        await there.until(there.trusts)
        word, former, stored = there.word(), there.path(), there.api.stored(SECRETS, "certificates", "ours")
        there.api.put(SECRETS, {**stored, "data": {**stored["data"], "callers.key": ""}})
        await there.until(lambda: there.word() not in {"", word})
        before, segment = secret_segment_of(word, PATH), secret_segment_of(there.word(), PATH)
        await there.until(lambda: replica.callers.is_known(segment, PATH))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert there.paths() == {former}
        seconds[0] += callers.SETTLE_SECONDS
        await there.until(there.trusts)
        assert replica.callers.is_known(before, PATH)
        seconds[0] += FORMER_SECONDS
        assert not replica.callers.is_known(before, PATH)
        assert replica.callers.is_known(segment, PATH)
