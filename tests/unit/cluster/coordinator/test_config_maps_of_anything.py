"""Whatever stands in the ConfigMaps of the journal and of adapters, a coordinator begins with what can be read."""

from __future__ import annotations

import asyncio
import base64
import copy
import hashlib
import tracemalloc
from typing import Any

import msgspec
import pytest
import structlog
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cedana_sched.cluster.coordinator import redo_log
from cedana_sched.cluster.coordinator.redo_log import LOG_NAME, Entries
from cedana_sched.kube.resources import CONFIG_MAPS
from cedana_sched.model import codec
from cedana_sched.model.records import Record
from cedana_sched.testing import FakeApi
from tests.unit.cluster.coordinator.test_adapter_notes import notes
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, by_uid
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD
from tests.unit.cluster.coordinator.test_redo_log import Writer, _different
from tests.unit.store.test_any_bytes_in_the_store import VALUES, places, replaced

fuzz = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
RECORDS: tuple[Record, ...] = (*map(_different, range(6)), HOLD)


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def bomb(size: int) -> bytes:
    """A frame of a few bytes that says it holds so many."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"


JSON = VALUES.map(lambda value: msgspec.json.encode(value, enc_hook=str))
PLAIN = msgspec.to_builtins(msgspec.json.decode(codec.encode(Entries(RECORDS[:2], RECORDS[2:3]))))
ENTRIES = st.builds(
    lambda place, by: msgspec.json.encode(replaced(PLAIN, place, by)), st.sampled_from(places(PLAIN)), VALUES
)
DATA = (
    st.binary(max_size=60)
    | st.builds(zstandard.compress, st.binary(max_size=60) | JSON | ENTRIES | st.just(b"[" * 100_000))
    | st.sampled_from([bomb(1 << 40), bomb(1 << 62), zstandard.compress(b"\0" * (8 << 20))])
)
TEXTS = DATA.map(text) | st.sampled_from(["", "=", "a", "é", "!!!!", "\0"])
LIVE = st.sampled_from(["0", "1", "7f", "-1", "", "z", "f" * 5_000, "0x1", "é"])
SEGMENTS = JSON.map(text) | st.lists(
    st.fixed_dictionaries({
        "parts": st.lists(st.tuples(st.integers(-2, 40), st.sampled_from(["", "a" * 64])), max_size=3),
        "live": LIVE,
    }),
    max_size=3,
).map(lambda segments: text(msgspec.json.encode(segments)))  # fmt: skip


async def loaded(binary_data: dict[str, Any], slots: dict[int, str] | None = None) -> dict[str, Any]:
    """What the next coordinator finds, and what it goes on with."""
    server = FakeApi()
    for name, data in (
        (LOG_NAME, binary_data),
        *((f"{LOG_NAME}-{n}", {"part": one}) for n, one in (slots or {}).items()),
    ):
        metadata = {"name": name, "namespace": SYSTEM, "resourceVersion": "1", "uid": name}
        server.objects[CONFIG_MAPS, SYSTEM, name] = {"metadata": metadata, "binaryData": data}
    writer = Writer(server, "next")
    with structlog.testing.capture_logs():
        found = by_uid(await writer.journal.load())
        await writer.save(RECORDS[:1])
        assert RECORDS[0].uid in by_uid(await Writer(server, "after").journal.load())
    return found


@fuzz
@given(st.dictionaries(st.sampled_from(["entries.json.zst", "part"]), TEXTS), SEGMENTS | st.none())
@example({"entries.json.zst": text(bomb(1 << 62))}, None)
def test_any_head_of_the_journal(data: dict[str, str], segments: str | None) -> None:
    asyncio.run(loaded(data | ({"segments.json": segments} if segments is not None else {})))


@fuzz
@given(DATA, LIVE, st.integers(0, 3))
def test_a_segment_of_anything_that_the_head_names_by_its_digest(data: bytes, live: str, slot: int) -> None:
    named = [{"parts": [(slot, hashlib.sha256(data).hexdigest())], "live": live}]
    asyncio.run(loaded({"segments.json": text(msgspec.json.encode(named))}, {slot: text(data)}))


@pytest.mark.parametrize("live", ["-1", "z", "", "1" + "0" * 9])
async def test_a_segment_that_says_no_sense_of_its_entries_is_passed_over(live: str) -> None:
    data = zstandard.compress(codec.encode(Entries(RECORDS)))
    named = [{"parts": [(1, hashlib.sha256(data).hexdigest())], "live": live}]
    inline = text(zstandard.compress(codec.encode(Entries(RECORDS[:1]))))
    head = {"segments.json": text(msgspec.json.encode(named)), "entries.json.zst": inline}
    assert await loaded(head, {1: text(data)}) == by_uid(RECORDS[:1])


@pytest.mark.parametrize("slot", [-1, redo_log.SLOTS, 10**30])
async def test_a_slot_that_is_none_is_not_read(slot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rule lets a coordinator read it, so it would be refused for ever."""
    monkeypatch.setattr(redo_log, "_slot_object_name", lambda number: pytest.fail(f"{number} was read"))
    named = [{"parts": [(slot, "")], "live": "1"}]
    server = FakeApi()
    metadata = {"name": LOG_NAME, "namespace": SYSTEM, "resourceVersion": "1", "uid": "u"}
    data = {"segments.json": text(msgspec.json.encode(named))}
    server.objects[CONFIG_MAPS, SYSTEM, LOG_NAME] = {"metadata": metadata, "binaryData": data}
    assert await Writer(server, "next").journal.load() == ()


async def test_what_is_larger_than_any_journal_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo_log, "MOST_BYTES", 1 << 20)
    packed = text(zstandard.compress(b'{"records":[],"forgotten":[]}' + b" " * (64 << 20)))
    tracemalloc.start()
    try:
        assert await loaded({"entries.json.zst": packed}) == {}
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


async def test_the_good_journal_of_these_tests_is_read() -> None:
    whole = zstandard.compress(codec.encode(Entries(RECORDS)))
    assert await loaded({"entries.json.zst": text(whole)}) == by_uid(RECORDS)
    named = [{"parts": [(1, hashlib.sha256(whole).hexdigest())], "live": f"{(1 << len(RECORDS)) - 1:x}"}]
    assert await loaded({"segments.json": text(msgspec.json.encode(named))}, {1: text(whole)}) == by_uid(RECORDS)


@fuzz
@given(st.dictionaries(st.sampled_from(["notes", "other"]), TEXTS | st.text(max_size=20)))
def test_any_notes(data: dict[str, str]) -> None:
    async def _read() -> None:
        server = FakeApi()
        await notes(server).write(b"ours")
        [stored] = server.objects.values()
        stored["binaryData"] = copy.deepcopy(data)
        await notes(server, "second").read()

    asyncio.run(_read())
