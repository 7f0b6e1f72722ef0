"""A review counts from the API server alone: whoever else reaches the port is told that there is nothing."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cedana_sched.component.callers import FORMER_SECONDS, SETTLE_SECONDS, Callers, secret_segment_of
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import Resource
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched_kueue.webhooks import JOBS
from cedana_sched_webhooks.certificates import IssuedCertificates, plan_next_step
from cedana_sched_webhooks.main import create_handlers
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.registrations import PODS, STATUSES, paths_by_hook_name
from cedana_sched_webhooks.replica_numbers import ReplicaNumbers
from cedana_sched_webhooks.server import admission_application
from cedana_sched_webhooks.tls import ServingCertificate
from tests.unit.webhooks.admission_builders import configuration, knowledge

SCHEDULER = "system:serviceaccount:volcano-system:volcano-scheduler"
SECRET, OTHER_SECRET = "5e" * 32, "0f" * 32
SEGMENT = secret_segment_of(SECRET, STATUSES)


class Marks:
    """Whom the webhook would mark."""

    def __init__(self) -> None:
        self.marked: list[str] = []

    def enqueue_mark(self, pod: Metadata, by: str) -> None:
        self.marked.append(f"{pod.namespace}/{pod.name} by {by}")


def forged() -> bytes:
    """As the evidence does it: the scheduler evicts a pod of another namespace."""
    condition = {"type": "DisruptionTarget", "status": "True"}
    metadata = {
        "name": "victim-0", "namespace": "tenant-b", "labels": {names.PROTECTED: "true"}, "uid": "u",
        "resourceVersion": "1",
    }  # fmt: skip
    request = {
        "uid": "1", "namespace": "tenant-b", "name": "victim-0", "userInfo": {"username": SCHEDULER},
        "object": {"metadata": metadata, "status": {"phase": "Running", "conditions": [condition]}},
        "oldObject": {"metadata": metadata, "status": {"phase": "Running"}},
    }  # fmt: skip
    return json.dumps({"request": request}).encode()


@asynccontextmanager
async def replica(
    marks: Marks, callers: Callers, serving: ServingCertificate | None = None, api: object = None
) -> AsyncIterator[str]:
    """Its address."""
    told = configuration(scheduler_users=frozenset({SCHEDULER}))
    answers = create_handlers(knowledge(), told, ReplicaNumbers(cast("Api", api)), marks)
    metrics = Metrics()
    application = admission_application(answers, asyncio.Event(), metrics, callers)
    context = serving.context if serving is not None else None
    async with serve_http(application, 0, context, host="127.0.0.1") as port:
        yield f"http{'s' if serving is not None else ''}://localhost:{port}"


def knowing(secret: str = SECRET) -> Callers:
    callers = Callers()
    callers.set_secret(secret)
    return callers


@pytest.mark.parametrize(
    "path",
    [
        STATUSES,
        f"/{OTHER_SECRET}{STATUSES}",
        f"/{SECRET}{STATUSES}",
        f"/{secret_segment_of(SECRET, PODS)}{STATUSES}",
        f"/{secret_segment_of(SECRET, JOBS)}{STATUSES}",
        f"/{SEGMENT[:-1]}{STATUSES}",
        f"//{STATUSES}",
        f"/%00{STATUSES}",
        f"/%ff{STATUSES}",
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
async def test_a_forged_review_marks_nobody(path: str, method: str) -> None:
    marks = Marks()
    async with (
        replica(marks, knowing()) as address,
        aiohttp.ClientSession() as client,
        client.request(method, f"{address}{path}", data=forged()) as answer,
    ):
        assert (answer.status, await answer.read()) == (404, b"")
    assert marks.marked == []


class Jobs:
    """All that a review of a pod may do to a cluster."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def get(self, resource: Resource, name: str, namespace: str, *, into: type[Any]) -> Any:
        self.read.append(resource.path(namespace, name))
        return into()


async def test_whoever_knows_the_segment_of_pods_reads_and_writes_nothing() -> None:
    """An API server that reaches no webhook tells it who creates a pod, where the chart says `Fail`."""
    jobs, marks = Jobs(), Marks()
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "theirs", "uid": "u", "controller": True}
    metadata = {"annotations": {names.ID: "theirs"}, "ownerReferences": [owner]}
    created = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    review = {"request": {"uid": "1", "namespace": "tenant-b", "object": created}}
    async with replica(marks, knowing(), api=jobs) as address, aiohttp.ClientSession() as client:
        async with client.post(f"{address}/{secret_segment_of(SECRET, PODS)}{PODS}", json=review) as answer:
            assert (await answer.json())["response"]["allowed"]
        for path in (STATUSES, JOBS, "/validate/checkpointpolicies"):
            async with client.post(f"{address}/{secret_segment_of(SECRET, PODS)}{path}", data=forged()) as answer:
                assert answer.status == 404
    assert jobs.read == ["/apis/batch/v1/namespaces/tenant-b/jobs/theirs"]
    assert marks.marked == []


async def test_the_api_server_is_answered() -> None:
    marks = Marks()
    async with replica(marks, knowing()) as address, aiohttp.ClientSession() as client:
        async with client.post(f"{address}/{SEGMENT}{STATUSES}?timeout=5s", data=forged()) as answer:
            assert (await answer.json())["response"]["status"]["code"] == 429
        async with client.get(f"{address}/{SEGMENT}{STATUSES}") as answer:
            assert answer.status == 404
        async with client.post(f"{address}/{SEGMENT}/nothing", data=forged()) as answer:
            assert answer.status == 404
    assert marks.marked == [f"tenant-b/victim-0 by {SCHEDULER}"]


async def test_nobody_is_believed_before_there_is_a_segment() -> None:
    marks = Marks()
    async with replica(marks, Callers()) as address, aiohttp.ClientSession() as client:
        for segment in ("", "x", "%00"):
            async with client.post(f"{address}/{segment}{STATUSES}", data=forged()) as answer:
                assert answer.status == 404
    assert marks.marked == []


async def test_what_a_stranger_sends_is_not_read() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 16)
            await asyncio.sleep(0)

    async with replica(Marks(), knowing()) as address, aiohttp.ClientSession() as client, asyncio.timeout(60):
        with contextlib.suppress(aiohttp.ClientError):  # closed in the middle of what it wrote
            async with client.post(f"{address}{PODS}", data=endless()) as answer:
                assert answer.status == 404


def test_a_former_segment_counts_for_a_while() -> None:
    now = [1000.0]
    callers = Callers(lambda: now[0])
    callers.set_secret("a" * 32)
    settled = [callers.has_reached_all_replicas]
    callers.set_secret("b" * 32)
    settled.append(callers.has_reached_all_replicas)
    before, now_ = (secret_segment_of(one * 32, PODS) for one in "ab")
    assert callers.is_known(before, PODS)
    assert callers.is_known(now_, PODS)
    now[0] += SETTLE_SECONDS
    settled.append(callers.has_reached_all_replicas)
    assert settled == [True, False, True]
    now[0] += FORMER_SECONDS
    assert not callers.is_known(before, PODS)


def test_how_long_a_comparison_takes_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append((known, given))
        return known == given

    callers = Callers()
    callers.set_secret("a" * 32)
    callers.set_secret("b" * 32)
    monkeypatch.setattr("hmac.compare_digest", compare)
    assert callers.is_known(secret_segment_of("b" * 32, PODS), PODS)
    assert len(compared) == 2, "all of them, also when the first one fits"


def test_each_webhook_has_a_path() -> None:
    found = paths_by_hook_name([PODS, JOBS, STATUSES, "/validate/checkpointpolicies", "/volcano/pods", "/armada/pods"])
    assert found == {
        "pods.sched.cedana.ai": PODS,
        "jobs.sched.cedana.ai": JOBS,
        "statuses.sched.cedana.ai": STATUSES,
        "checkpointpolicies.sched.cedana.ai": "/validate/checkpointpolicies",
        "volcano-pods.sched.cedana.ai": "/volcano/pods",
        "armada-pods.sched.cedana.ai": "/armada/pods",
    }


class Authority:
    """Signs clients' certificates, into files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(self._signed(name, self._key.public_key(), authority=True))

    def client(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, private = self.folder / f"{self._name}-{name}.crt", self.folder / f"{self._name}-{name}.key"
        certificate.write_bytes(self._signed(name, key.public_key(), authority=False))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def _signed(self, name: str, key: ec.EllipticCurvePublicKey, *, authority: bool) -> bytes:
        now = dt.datetime.now(tz=dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)]))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)


def own() -> IssuedCertificates:
    issued = plan_next_step(None, ("localhost",), trusted=False, now=dt.datetime.now(tz=dt.UTC)).issued
    assert issued is not None
    return issued


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (("cluster", "kube-apiserver"), 200),
        (("cluster", "tenant"), 404),
        (("other", "kube-apiserver"), None),
        (None, None),
    ],
)
async def test_a_certificate_is_asked_for_where_the_api_server_has_one(
    shown: tuple[str, str] | None, status: int | None, tmp_path: Path
) -> None:
    authorities = {name: Authority(tmp_path, name) for name in ("cluster", "other")}
    issued, serving = own(), ServingCertificate(Metrics(), authorities["cluster"].file)
    serving.load(issued.certificate, issued.key)
    callers = Callers(certificate_names=frozenset({"kube-apiserver"}))
    callers.set_secret(SECRET)
    trusting = ssl.create_default_context(cadata=issued.authorities.decode())
    if shown is not None:
        trusting.load_cert_chain(*authorities[shown[0]].client(shown[1]))
    connector = aiohttp.TCPConnector(ssl=trusting)
    marks, got = Marks(), None
    async with replica(marks, callers, serving) as address, aiohttp.ClientSession(connector=connector) as client:
        try:
            async with client.post(f"{address}/{SEGMENT}{STATUSES}", data=forged()) as answer:
                got = answer.status
        except aiohttp.ClientError:
            got = None
    assert got == status
    assert bool(marks.marked) == (status == 200)


def test_authorities_that_cannot_be_read_end_the_start_in_words(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("empty", "absent"):
        with pytest.raises(UsageError, match="cannot be read"):
            ServingCertificate(Metrics(), tmp_path / name)
