"""Whether the doctor sees a store that cannot be used, or that anybody may read."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from cedana_sched.cli.doctor.cluster.storage import examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_STORAGES

from .cluster_to_look_at import Cluster, said

LISTING = "<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{}</ListBucketResult>"
OBJECT = (
    "<Contents><Key>p/x</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>1</ETag><Size>1</Size></Contents>"
)
DENIED = "<Error><Code>AccessDenied</Code><Message>no</Message></Error>"


class Store:
    """Answers a listing as it is told."""

    def __init__(self) -> None:
        self.status, self.body, self.signed = 403, DENIED, False
        self.endpoint = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.signed |= "Authorization" in request.headers
        return web.Response(status=self.status, text=self.body, content_type="application/xml")


@pytest.fixture
async def store(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "knows")
    server, application = Store(), web.Application()
    application.router.add_get("/b", server.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.01, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


def storage(spec: Object, status: str | None = "True", message: str = "writes 90 MiB/s") -> Object:
    conditions = [{"type": "Ready", "status": status, "message": message}] if status else []
    return {"metadata": {"name": "main"}, "spec": spec, "status": {"conditions": conditions}}


def bucket(store: Store) -> Object:
    return {"s3": {"bucket": "b", "prefix": "p", "endpoint": store.endpoint, "allowHttp": True}}


async def found_of(*storages: Object) -> list[str]:
    return said(await examine(Cluster().put(CHECKPOINT_STORAGES, *storages).reads))


async def test_a_bucket_that_strangers_may_not_list_is_well(store: Store) -> None:
    assert await found_of(storage(bucket(store))) == [
        "ok main: writes 90 MiB/s",
        f"warn main: {store.endpoint} has no TLS, and memory crosses the network as the store gets it",
        "ok main: bucket b cannot be listed without a key",
    ]
    assert not store.signed, "keys of whoever asks say nothing of strangers"


@pytest.mark.parametrize("objects", ["", OBJECT])
async def test_a_bucket_that_anybody_lists_is_a_failure(store: Store, objects: str) -> None:
    store.status, store.body = 200, LISTING.format(objects)
    assert (await found_of(storage(bucket(store))))[-1].startswith("fail main: bucket b can be listed without a key")


@pytest.mark.parametrize(("status", "body"), [(200, "<html>sign in</html>"), (404, DENIED), (503, LISTING)])
async def test_what_is_no_answer_of_a_store_says_nothing(store: Store, status: int, body: str) -> None:
    store.status, store.body = status, body
    assert (await found_of(storage(bucket(store))))[-1].startswith("warn main: whether bucket b is public is not known")


async def test_a_storage_that_cannot_be_used_says_why() -> None:
    folder: Object = {"posix": {"path": "/shared"}}
    assert await found_of(storage(folder, "False", "no such bucket")) == ["fail main cannot be used: no such bucket"]
    assert await found_of(storage(folder, "Unknown", "only nodes see it")) == ["ok main: only nodes see it"]
    assert await found_of(storage(folder, None)) == ["warn main: no coordinator has tried it yet"]


@pytest.mark.parametrize(
    ("status", "reason", "level"),
    [("True", "ScopedCredentials", "ok"), ("False", "NodesHaveBucketKeys", "warn"), ("False", "NoSessions", "fail")],
)
async def test_whether_each_node_can_reach_all_snapshots(store: Store, status: str, reason: str, level: str) -> None:
    told = storage(bucket(store))
    told["status"]["conditions"].append({"type": "Scoped", "status": status, "reason": reason, "message": "so it is"})
    assert f"{level} main: so it is" in await found_of(told)


async def test_a_cluster_without_a_storage_saves_nothing() -> None:
    assert await found_of() == ["fail there is no CheckpointStorage"]
    cluster = Cluster()
    del cluster.there[CHECKPOINT_STORAGES]
    assert said(await examine(cluster.reads)) == ["fail there is no CheckpointStorage"]
