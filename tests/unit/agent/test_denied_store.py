"""A store that refuses our keys for a while, since they are replaced or a clock is wrong, costs time, and no work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.agent.capture import _is_retryable
from cedana_sched.agent.restore_orders import RestoreOrders
from cedana_sched.agent.staging import Staging
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.coordinator.core import PublishEvent
from cedana_sched.model import orders
from cedana_sched.model.errors import CommitConflictError, DumpError, IntegrityError, StoreDeniedError, UnsealedError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import S3Location, StorageConfig
from tests.servers.loopback import QuietHandler, serving
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime
from tests.unit.coordinator.core.core_builders import MD, POLICY, ref
from tests.unit.coordinator.core.restore_stories import saved, start

ANSWERS = [
    (403, "RequestTimeTooSkewed"),
    (400, "ExpiredToken"),
    (403, "ExpiredToken"),
    (403, "InvalidAccessKeyId"),
    (403, "SignatureDoesNotMatch"),
    (403, "AccessDenied"),
    (401, "Unauthorized"),
]


class Refusing:
    """A store that answers everything with one refusal."""

    def __init__(self) -> None:
        self.status, self.code = ANSWERS[0]
        self.url = ""

    def open(self) -> SnapshotStore:
        keys = {"access_key": "mine", "secret_key": "of-yesterday"}
        location = S3Location(bucket="snapshots", endpoint=self.url, allow_http=True, **keys)  # type: ignore[arg-type]
        return SnapshotStore.open(StorageConfig(s3=location))


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    there = Refusing()

    class Handler(QuietHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            said = f'<?xml version="1.0"?><Error><Code>{there.code}</Code><Message>no</Message></Error>'.encode()
            self.send_response(there.status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815  # names of the library

    with serving(Handler) as there.url:
        yield there


@pytest.mark.parametrize(("status", "code"), ANSWERS)
async def test_return_waits_and_an_eviction_is_tried_again(
    refusing: Refusing, tmp_path: Path, status: int, code: str
) -> None:
    refusing.status, refusing.code = status, code
    store = refusing.open()
    runtime = FakeRuntime(tmp_path)
    returns = RestoreOrders(runtime, runtime, store, Staging(tmp_path / "staged", "4.2.1"), StoreThreads())
    for answer in (
        await returns.find(orders.FindSnapshot("r1", MD)),
        await returns.stage(orders.Stage("r1", WORKLOAD, SnapshotRef(MD, 1))),
    ):
        assert isinstance(answer, orders.StageFailed)
        assert answer.retryable
        assert "the bucket snapshots" in answer.why
    with pytest.raises(Exception, match="the bucket snapshots") as raised:
        store.begin(MD, checkpoint_uid="c1")
    assert _is_retryable(raised.value)


def test_what_another_attempt_may_mend_is_tried_again() -> None:
    dump = DumpError("CRIU's stream broke off")
    dump.__cause__ = StoreDeniedError("the server refuses these keys")
    passing = dump, StoreDeniedError("no such bucket"), CommitConflictError("another writer has committed it")
    assert all(map(_is_retryable, passing))
    staying = DumpError("io_uring"), UnsealedError("not sealed"), IntegrityError("forged")
    assert not any(map(_is_retryable, staying))


async def test_what_is_not_sealed_stays_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    store = SnapshotStore.open(StorageConfig(path=tmp_path / "store"))
    runtime = FakeRuntime(tmp_path)
    returns = RestoreOrders(runtime, runtime, store, Staging(tmp_path / "staged", "4.2.1"), StoreThreads())

    def unsealed(*_: object, **__: object) -> None:
        raise UnsealedError("it is not sealed")

    monkeypatch.setattr(store, "latest_snapshot_of", unsealed)
    answer = await returns.find(orders.FindSnapshot("r1", MD))
    assert isinstance(answer, orders.SnapshotFound)
    assert answer.problem is not None


def test_return_that_is_denied_says_so_and_continues_once_it_is_not() -> None:
    denied = orders.StageFailed("restore.w2", "the server refuses these keys", retryable=True)
    told = start(saved()).tell(denied)
    assert [(one.kind, "refuses these keys" in one.text) for one in told.said if isinstance(one, PublishEvent)] == [
        ("RestoreDelayed", True)
    ]
    told.after(POLICY.restore_deadline_seconds - 10)
    assert told.tell(orders.SnapshotFound("restore.w2", ref(1))).step("restore.w2") == "Staging"
