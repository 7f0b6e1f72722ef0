"""One replica as the API server meets it: over TLS, while certificates change, and at its end."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import io
import json
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import structlog
from asyncinotify import Inotify

from cedana_sched.component import folder_watches
from cedana_sched.component.configuration import NEVER_TOUCHED, load
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api
from cedana_sched.model.errors import UsageError
from cedana_sched_webhooks import server
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.certificate_files import CertificateFileKeeper
from cedana_sched_webhooks.certificates import (
    IssuedCertificates,
    UnreadableCertificatesError,
    expiry_of_certificate,
    plan_next_step,
)
from cedana_sched_webhooks.configuration import CertificateFiles, Configuration
from cedana_sched_webhooks.main import create_handlers
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.replica_numbers import ReplicaNumbers
from cedana_sched_webhooks.schedulers import Handler
from cedana_sched_webhooks.server import admission_application
from cedana_sched_webhooks.tls import ServingCertificate
from tests.unit.webhooks.admission_builders import configuration, knowledge, pod

NAMES = ("localhost",)
NOBODY_ASKED = ReplicaNumbers(cast("Api", None))


class Nobody:
    def enqueue_mark(self, pod: Metadata, by: str) -> None: ...


def answers() -> dict[str, Handler]:
    return create_handlers(knowledge(), configuration(), NOBODY_ASKED, Nobody())


def issue() -> IssuedCertificates:
    issued = plan_next_step(None, NAMES, trusted=False, now=dt.datetime.now(tz=dt.UTC)).issued
    assert issued is not None
    return issued


def trusting(bundle: bytes) -> aiohttp.ClientSession:
    context = ssl.create_default_context(cadata=bundle.decode())
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))


def review(body: Any) -> bytes:
    request = {"uid": "7", "operation": "CREATE", "namespace": "lab", "object": body, "userInfo": {"username": "u"}}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


@asynccontextmanager
async def replica(serving: ServingCertificate, metrics: Metrics) -> AsyncIterator[int]:
    application = admission_application(answers(), asyncio.Event(), metrics)
    async with serve_http(application, 0, serving.context, host="127.0.0.1") as port:
        yield port


async def test_a_review_over_tls_and_what_is_counted() -> None:
    metrics, issued = Metrics(), issue()
    serving = ServingCertificate(metrics)
    assert not serving.is_loaded
    serving.load(issued.certificate, issued.key)
    async with replica(serving, metrics) as port, trusting(issued.authorities) as client:
        async with client.post(f"https://localhost:{port}/mutate/pods?timeout=5s", data=review(pod())) as answer:
            response = (await answer.json())["response"]
        assert response["allowed"]
        assert response["patchType"] == "JSONPatch"
        async with client.post(f"https://localhost:{port}/mutate/pods", data=review(pod("not valid"))) as answer:
            assert "not protected" in (await answer.json())["response"]["warnings"][0]
        async with client.post(f"https://localhost:{port}/mutate/pods", data=b"{}") as answer:
            assert answer.status == 400
        async with client.post(f"https://localhost:{port}/mutate/nothing", data=review(pod())) as answer:
            assert answer.status == 404
        large = pod(annotations={"x": "y" * 3_000_000})
        async with client.post(f"https://localhost:{port}/mutate/pods", data=io.BytesIO(review(large))) as answer:
            assert answer.status == 200
    value = metrics.registry.get_sample_value
    count = "cedana_sched_webhook_requests_total"
    assert value(count, {"webhook": "/mutate/pods", "decision": "identified"}) == 1
    assert value(count, {"webhook": "/mutate/pods", "decision": "large"}) == 1
    assert value(count, {"webhook": "/mutate/pods", "decision": "unclear"}) == 1
    assert value(count, {"webhook": "/mutate/pods", "decision": "unreadable"}) == 1
    assert value("cedana_sched_webhook_warnings_total", {"webhook": "/mutate/pods"}) == 2
    assert value("cedana_sched_webhook_duration_seconds_count", {"webhook": "/mutate/pods"}) == 3
    expires = value("cedana_sched_webhook_certificate_expiry_timestamp_seconds")
    assert expires == expiry_of_certificate(issued.certificate).timestamp()


async def test_a_handler_that_fails_is_an_error_of_the_server_and_counted() -> None:
    async def fails(_: Request) -> Answer:
        raise RuntimeError("a defect")

    metrics = Metrics()
    async with (
        serve_http(admission_application({"/x": fails}, asyncio.Event(), metrics), 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as client,
        client.post(f"http://localhost:{port}/x", data=review(pod())) as answer,
    ):
        assert answer.status == 500
    labels = {"webhook": "/x", "decision": "failed"}
    assert metrics.registry.get_sample_value("cedana_sched_webhook_requests_total", labels) == 1


async def test_a_review_that_is_too_long_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    body = review(pod())
    monkeypatch.setattr(server, "LONGEST_REQUEST_BYTES", len(body) - 1)
    metrics = Metrics()
    async with (
        serve_http(admission_application(answers(), asyncio.Event(), metrics), 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as client,
        client.post(f"http://localhost:{port}/mutate/pods", data=body) as answer,
    ):
        assert answer.status == 413
    labels = {"webhook": "/mutate/pods", "decision": "unreadable"}
    assert metrics.registry.get_sample_value("cedana_sched_webhook_requests_total", labels) == 1


async def test_a_review_that_does_not_come_to_its_end_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "READ_SECONDS", 0.05)
    metrics = Metrics()

    async def unfinished() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with (
        serve_http(admission_application(answers(), asyncio.Event(), metrics), 0, host="127.0.0.1") as port,
        aiohttp.ClientSession() as client,
        client.post(f"http://localhost:{port}/mutate/pods", data=unfinished()) as answer,
    ):
        assert answer.status == 408
    labels = {"webhook": "/mutate/pods", "decision": "unreadable"}
    assert metrics.registry.get_sample_value("cedana_sched_webhook_requests_total", labels) == 1


async def test_the_same_refusal_again_is_told_of_at_debug() -> None:
    said = iter(("not-yet-held", "not-yet-held", "not-yet-held", "held", "held", "released"))

    async def holds(_: Request) -> Answer:
        decision = next(said)
        refusal = None if decision == "released" else Refusal(429, "TooManyRequests", "Held")
        return Answer(decision, refusal=refusal)

    body = json.loads(review(pod()))
    application = admission_application({"/x": holds}, asyncio.Event(), Metrics())
    with structlog.testing.capture_logs() as logs:
        async with serve_http(application, 0, host="127.0.0.1") as port, aiohttp.ClientSession() as client:
            for uid in ("a", "a", "b", "a", "a", "a"):
                body["request"]["oldObject"] = {"metadata": {"uid": uid}}
                async with client.post(f"http://localhost:{port}/x", json=body) as answer:
                    assert answer.status == 200
    told = [(one["decision"], one["log_level"]) for one in logs if one["event"] == "admission"]
    assert told == [
        ("not-yet-held", "info"),
        ("not-yet-held", "debug"),
        ("not-yet-held", "info"),
        ("held", "info"),
        ("held", "debug"),
        ("released", "info"),
    ]


async def test_new_connections_see_a_new_certificate_and_old_ones_go_on() -> None:
    metrics, old, new = Metrics(), issue(), issue()
    serving = ServingCertificate(metrics)
    serving.load(old.certificate, old.key)
    async with replica(serving, metrics) as port:
        url = f"https://localhost:{port}/mutate/pods"
        async with trusting(old.authorities) as before, trusting(new.authorities) as after:
            async with before.post(url, data=review(pod())) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await after.post(url, data=review(pod()))
            assert serving.load(new.certificate, new.key)
            async with after.post(url, data=review(pod())) as answer:
                assert answer.status == 200
            async with before.post(url, data=review(pod())) as answer:  # over the connection that is open
                assert answer.status == 200
        async with trusting(old.authorities) as late:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await late.post(url, data=review(pod()))


async def test_a_pair_that_does_not_fit_leaves_what_is_in_use() -> None:
    metrics, one, other = Metrics(), issue(), issue()
    serving = ServingCertificate(metrics)
    serving.load(one.certificate, one.key)
    with pytest.raises(UnreadableCertificatesError, match="cannot be served with"):
        serving.load(other.certificate, one.key)
    assert not serving.load(one.certificate, one.key)
    async with (
        replica(serving, metrics) as port,
        trusting(one.authorities) as client,
        client.post(f"https://localhost:{port}/mutate/pods", data=review(pod())) as answer,
    ):
        assert answer.status == 200


async def test_near_its_end_a_replica_answers_and_sends_connections_elsewhere() -> None:
    ending = asyncio.Event()
    application = admission_application(answers(), ending, Metrics())
    async with serve_http(application, 0, host="127.0.0.1") as port, aiohttp.ClientSession() as client:
        connections = []
        for ends in (False, True):
            if ends:
                ending.set()
            async with client.post(f"http://localhost:{port}/mutate/pods", data=review(pod())) as answer:
                assert (await answer.json())["response"]["allowed"]
                connections.append(answer.headers.get("Connection"))
        assert connections == [None, "close"]


def _spent(self: Inotify, **_: int) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("is_told", [True, False], ids=["inotify", "no inotify left"])
async def test_files_are_read_again_when_the_folder_changes(
    tmp_path: Path, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_told:  # pods of the same user have all that the node has for it
        monkeypatch.setattr(Inotify, "__init__", _spent)
        monkeypatch.setattr(folder_watches, "LOOK_SECONDS", 0.05)
    metrics, old, new = Metrics(), issue(), issue()
    serving = ServingCertificate(metrics)

    def mount(issued: IssuedCertificates, number: int) -> None:
        """As the kubelet changes a Secret's volume: by one rename of a link."""
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "tls.crt").write_bytes(issued.certificate)
        (folder / "tls.key").write_bytes(issued.key)
        (tmp_path / "..new").symlink_to(folder.name)
        (tmp_path / "..new").rename(tmp_path / "..data")

    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    mount(old, 1)
    files = CertificateFiles(certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key")
    keeping = asyncio.create_task(CertificateFileKeeper(files, serving, metrics).run())
    async with replica(serving, metrics) as port:
        url = f"https://localhost:{port}/mutate/pods"
        await _until_trusted(url, old)
        mount(new, 2)
        await _until_trusted(url, new)
    keeping.cancel()
    await asyncio.wait([keeping])


async def _until_trusted(url: str, issued: IssuedCertificates) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                async with trusting(issued.authorities) as client, client.post(url, data=review(pod())) as answer:
                    assert answer.status == 200
                    return
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.01)


def test_a_configuration_is_read_and_a_wrong_one_named(tmp_path: Path) -> None:
    file = tmp_path / "webhooks.json"
    file.write_text(json.dumps({"namespace": "ours", "restore": {"image": "x"}, "excludedNamespaces": ["monitoring"]}))
    read, _ = load(Configuration, file)
    assert read.excluded_namespaces == {*NEVER_TOUCHED, "ours", "monitoring"}
    assert read.port == 9443
    file.write_text(json.dumps({"namespace": "ours", "restore": {"image": "x", "user": 0, "later": 1}}))
    with pytest.raises(UsageError, match=r"restore\.user"):
        load(Configuration, file)
    with pytest.raises(UsageError, match="cannot be read"):
        load(Configuration, tmp_path / "absent")
