"""What components keep of the objects of our kinds that they have read."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, KnownCheckpoint
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.response_decoding import Unreadable, read
from cedana_sched.model.objects.checkpoint import TransferStatus
from cedana_sched.model.records import Transfer

COUNTS = {"readBytes": 8, "zeroBytes": 1, "reusedBytes": 2, "storedBytes": 3}
POLICY = {"restoreDeadlineSeconds": 60}


def body(**status: Any) -> bytes:
    metadata = {"name": "md-0", "namespace": "bio", "uid": "u", "resourceVersion": "1"}
    first = {"number": 1, "order": {"type": "Freeze"}}
    pod = {"uid": "p", "name": "md-0", "nodeName": "node-of-a-long-name"}
    spec = {"uid": "c", "identity": {"id": "md"}, "podRef": pod, "policy": POLICY, "firstOrder": first}
    return msgspec.json.encode({"metadata": metadata, "spec": spec, "status": status})


def ordered(**status: Any) -> OrderedObject:
    return msgspec.json.decode(body(**status), type=OrderedObject)


@pytest.mark.parametrize("into", [OrderedObject, Checkpoint, KnownCheckpoint])
def test_an_object_keeps_nothing_of_the_response_that_it_came_in(into: type[msgspec.Struct]) -> None:
    said = {"number": 2, "order": {"type": "Kill"}}, {"number": 2, "outcome": {"type": "Killed"}}
    response = body(order=said[0], answer=said[1], transfer=COUNTS, message="x" * (1 << 20))
    msgspec.json.decode(response, type=into)
    tracemalloc.start()
    try:
        found = msgspec.json.decode(bytes(bytearray(response)), type=into)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(found, into)
    assert kept < 8_000


def test_objects_of_one_node_share_its_name() -> None:
    one, other = (msgspec.json.decode(body(), type=Checkpoint) for _ in range(2))
    assert one.spec.pod_ref.node_name is other.spec.pod_ref.node_name


def test_the_first_order_is_effective_until_there_is_another() -> None:
    assert ordered().order_number == 1
    later = ordered(order={"number": 4, "order": {"type": "Kill"}})
    assert later.order_number == 4
    assert later.spec.first_order is None


@pytest.mark.parametrize(
    ("shown", "counts"),
    [
        (COUNTS, Transfer(8, 1, 2, 3)),
        ({"readBytes": 8}, Transfer(8)),
        ({"readBytes": "many"}, None),
        ([], None),
    ],
)
def test_progress_that_an_agent_shows(shown: Any, counts: Transfer | None) -> None:
    assert ordered(transfer=shown).status.transferred == counts


def test_transfers_are_written_as_they_are_read() -> None:
    assert TransferStatus.from_transfer(Transfer(8, 1, 2, 3)).to_json() == COUNTS
    assert ordered().status.transferred == Transfer()


@pytest.mark.parametrize(("written", "policy"), [(POLICY, POLICY), ([], {}), ("none", {})])
def test_a_policy_is_read_as_it_is_written(written: Any, policy: dict[str, Any]) -> None:
    spec = {"uid": "c", "policy": written}
    text = msgspec.json.encode({"metadata": {"name": "r"}, "spec": spec})
    assert msgspec.json.decode(text, type=OrderedObject).policy == policy


@pytest.mark.parametrize("into", [OrderedObject, Checkpoint, KnownCheckpoint])
@pytest.mark.parametrize("identity", [{"id": "../md"}, {"id": "md", "container": "../main"}, {"index": 3}])
def test_an_object_with_a_malformed_identity_is_named(into: type[Any], identity: dict[str, Any]) -> None:
    text = msgspec.json.encode({"metadata": {"name": "md-0"}, "spec": {"uid": "c", "identity": identity}})
    found = read(CHECKPOINTS, text, into)
    assert isinstance(found, Unreadable)
    assert found.metadata.name == "md-0"
