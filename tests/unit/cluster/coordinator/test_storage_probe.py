"""A CheckpointStorage says whether it can be used, and why not."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import datetime
from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.scoped_storage_condition import ScopedConditionProbe
from cedana_sched.cluster.coordinator.storage_probe import StorageProbe, storage_configuration_of
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.own_kinds.cached_storage import CachedStorage
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.errors import StoreDeniedError, UsageError
from cedana_sched.store.check import StoreReport
from cedana_sched.store.credential_renewal import SessionCredentials
from cedana_sched.store.storage_config import S3Location, StorageConfig
from cedana_sched.store.sts import NoSessionsError

_S3: Object = {"s3": {"bucket": "snapshots", "endpoint": "http://s3.test:7070", "allowHttp": True, "prefix": "lab"}}
_REPORT = StoreReport("s3://snapshots/lab", True, "conditional create", True, 100 << 20, 200 << 20, 0.004)


class _Server:
    """Takes the status of storages."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[Object] = asyncio.Queue()

    async def patch(self, resource: Any, name: str, namespace: None, patch: Object, *, subresource: str) -> None:
        assert subresource == "status"
        self.said.put_nowait(patch["status"])


async def _first_status(
    spec: Object, report: StoreReport | Exception, scoping: ScopedConditionProbe | None = None
) -> Object:
    server = _Server()

    def probe(config: StorageConfig) -> StoreReport:
        if isinstance(report, Exception):
            raise report
        return report

    storages = StorageProbe(cast("Api", server), probe, probe, scoping)
    trying = asyncio.create_task(storages._keep_trying(CachedStorage(Metadata(name="lab"), spec)))
    try:
        return await asyncio.wait_for(server.said.get(), 60)
    finally:
        trying.cancel()
        with suppress(asyncio.CancelledError):
            await trying


async def test_a_defect_of_what_speaks_to_the_store_is_said_and_ends_nobody() -> None:
    status = await _first_status(_S3, ValueError("illegal character"))
    ready = status["conditions"][0]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "NotTried")
    assert "illegal character" in ready["message"]


async def test_usable_storage_says_what_was_measured() -> None:
    status = await _first_status(_S3, _REPORT)
    ready = status["conditions"][0]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "True", "Probed")
    assert ready["message"].startswith("s3://snapshots/lab: writes 100 MiB/s, reads 200 MiB/s, 4 ms a round trip")
    assert status["lastProbeTime"] == ready["lastTransitionTime"]


@pytest.mark.parametrize("apart", [-600.0, 600.0])
async def test_status_is_dated_by_the_api_server(monkeypatch: pytest.MonkeyPatch, apart: float) -> None:
    monkeypatch.setattr(SERVER_TIME, "_epoch", SERVER_TIME._epoch + apart)
    probed = datetime.fromisoformat((await _first_status(_S3, _REPORT))["lastProbeTime"])
    assert probed.timestamp() == pytest.approx(time.time() + apart, abs=60)


async def test_storage_that_refuses_says_why_and_what_to_do() -> None:
    status = await _first_status(_S3, StoreDeniedError("the keys are wrong", remedy="see the Secret"))
    ready = status["conditions"][0]
    assert (ready["status"], ready["reason"], ready["message"]) == (
        "False",
        "StoreDenied",
        "the keys are wrong (see the Secret)",
    )


async def test_folder_of_the_nodes_is_not_tried_from_the_coordinator() -> None:
    status = await _first_status({"posix": {"path": "/lab"}}, AssertionError("nobody looks"))
    assert status["conditions"][0]["status"] == "Unknown"


async def _scoped(scoping: ScopedConditionProbe | None) -> tuple[str, str, str]:
    conditions = (await _first_status(_S3, _REPORT, scoping))["conditions"]
    assert [one["type"] for one in conditions] == ["Ready", "Scoped"]
    return conditions[1]["status"], conditions[1]["reason"], conditions[1]["message"]


async def test_storage_says_that_nodes_hold_the_keys_of_all() -> None:
    status, reason, message = await _scoped(None)
    assert (status, reason) == ("False", "NodesHaveBucketKeys")
    assert message.endswith("set storage.s3.scopedCredentials.enabled if the store has STS with session policies")


async def test_storage_says_whether_nodes_get_credentials() -> None:
    tried: list[tuple[str, str]] = []

    def begin(namespace: str, who: str) -> SessionCredentials:
        tried.append((namespace, who))
        if len(tried) > 1:
            raise NoSessionsError("there is no STS", remedy="use another store")
        return SessionCredentials("k", "s", "t", 900.0)

    ours = storage_configuration_of(_S3).s3
    assert (await _scoped(ScopedConditionProbe(ours, begin)))[:2] == ("True", "ScopedCredentials")
    assert tried == [("cedana-sched", "coordinator")]
    status, reason, message = await _scoped(ScopedConditionProbe(ours, begin))
    assert (status, reason) == ("False", "NoSessions")
    assert "there is no STS (use another store)" in message
    assert (await _scoped(ScopedConditionProbe(S3Location(bucket="another"), begin)))[1] == "NodesHaveBucketKeys"


async def test_a_prefix_that_no_session_policy_fits_leaves_the_storage_usable() -> None:
    def begin(namespace: str, who: str) -> SessionCredentials:
        raise UsageError("prefix", "a*", "would be read as a pattern", remedy="use no '*' in it")

    conditions = (await _first_status(_S3, _REPORT, ScopedConditionProbe(storage_configuration_of(_S3).s3, begin)))[
        "conditions"
    ]
    assert [(one["type"], one["status"]) for one in conditions] == [("Ready", "True"), ("Scoped", "False")]
    assert "would be read as a pattern" in conditions[1]["message"]


async def test_a_folder_has_no_keys() -> None:
    status = await _first_status({"posix": {"path": "/lab"}}, AssertionError("nobody looks"))
    assert [one["type"] for one in status["conditions"]] == ["Ready"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [({}, "spec"), ({"posix": {"path": "lab"}}, "spec.posix.path"), ({"s3": {"bucket": "B"}}, "s3.bucket")],
)
def test_what_cannot_be_a_place_is_named(spec: Object, field: str) -> None:
    with pytest.raises(UsageError) as error:
        storage_configuration_of(spec)
    assert error.value.field == field


def test_place_of_an_s3_storage() -> None:
    config = storage_configuration_of(_S3)
    assert str(config) == "s3://snapshots/lab"
