"""The log holds a turn of any size, whole or not at all, at whatever request its writer dies or is fenced off."""

from __future__ import annotations

import asyncio
import base64
import threading
import uuid
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.coordinator import redo_log
from cedana_sched.cluster.coordinator.journal import ObjectJournal
from cedana_sched.cluster.coordinator.projection import Projection
from cedana_sched.cluster.coordinator.redo_log import LOG_NAME, SLOTS, FencedError
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import AbsentError, ApiUnavailableError
from cedana_sched.kube.resources import CONFIG_MAPS, Resource
from cedana_sched.model import codec
from cedana_sched.model.preemption import HeldObject, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep, PreemptionHold, Record, Transfer
from cedana_sched.testing import FakeApi, Traffic
from cedana_sched.testing.traffic import REFUSALS
from tests.pauses import shorten_pauses
from tests.unit.cluster.coordinator.test_object_journal import SYSTEM, Process, by_uid, checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import HOLD

T = TypeVar("T")
NO_NAMESPACE = 404, b'{"reason": "NotFound", "details": {"kind": "namespaces"}}'


class PowerFailureError(Exception):
    """The process ends here."""


class MortalServer(FakeApi):
    """Its client dies at request number `dies_at` of a ConfigMap, before or after that was done."""

    def __init__(self, dice: Random | None = None, fault_rate: float = 0.0) -> None:
        super().__init__(Traffic(dice, fault_rate))
        self.requests = 0
        self.dies_at = 0
        self.is_done = False
        self.before_request: Any = None

    async def create(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        await self._arrive()
        return self._maybe_die(await super().create(resource, body, into=into))

    async def update(self, resource: Resource, body: Object, *, into: type[T]) -> T:
        await self._arrive()
        return self._maybe_die(await super().update(resource, body, into=into))

    async def _arrive(self) -> None:
        self.requests += 1
        if (hook := self.before_request) is not None and self.requests == self.dies_at:
            self.before_request = None
            await hook()
        elif self.requests == self.dies_at and not self.is_done:
            raise PowerFailureError

    def _maybe_die(self, answer: T) -> T:
        if self.requests == self.dies_at and self.is_done:
            raise PowerFailureError
        return answer


class Writer:
    """One coordinator's journal; its projection carries nothing over, so that everything stays in the log."""

    def __init__(self, server: FakeApi, name: str) -> None:
        self.projection = Projection(server, SYSTEM)
        self.journal = ObjectJournal(server, SYSTEM, name, self.projection)

    async def save(self, records: tuple[Record, ...], forget: tuple[Record, ...] = ()) -> None:
        """As the coordinator does: again until it succeeds."""
        while True:
            with suppress(ApiUnavailableError):
                return await self.journal.save(records, forget)


@pytest.fixture
def tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits at which a handful of records needs several parts."""
    monkeypatch.setattr(redo_log, "PART_BYTES", 600)
    monkeypatch.setattr(redo_log, "INLINE_BYTES", 500)
    monkeypatch.setattr(redo_log, "INLINE_RECORDS", 2)
    monkeypatch.setattr(redo_log, "SEGMENTS", 4)


def _uid(dice: Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128)))


def _different(number: int, step: CheckpointStep = CheckpointStep.DUMPING) -> Checkpoint:
    """One that compresses as badly as a real one."""
    dice = Random(number)
    pod = _uid(dice)
    return replace(
        checkpoint(number, step),
        gang=_uid(dice),
        workload=WorkloadRef(pod, "bio", f"md-{pod[:5]}", f"ip-10-{dice.randrange(255)}-{dice.randrange(255)}"),
        created_at=1.8e9 + dice.random(),
        deadline=1.8e9 + 600 + dice.random(),
        frozen_at=1.8e9 + dice.random(),
        transfer=Transfer(*(dice.randrange(1 << 36) for _ in range(4))),
        failure=f"the dump failed: {_uid(dice)} {_uid(dice)}",
    )


def _hold_of(one: Checkpoint) -> PreemptionHold:
    job = _uid(Random(one.uid))
    held = HeldObject("batch/v1", "Job", "bio", one.workload.name, job)
    created = one.created_at + 0.1
    return replace(HOLD, uid=f"{job}@2026", checkpoints=(one.uid,), held=held, created_at=created, release_group=job)


def _sizes(server: FakeApi) -> list[int]:
    return [
        sum(len(base64.b64decode(one)) for one in body["binaryData"].values()) for body in server.all_of(CONFIG_MAPS)
    ]


async def test_ten_thousand_victims_of_one_turn_are_saved_and_loaded() -> None:
    server = FakeApi()
    before = Writer(server, "before")
    await before.journal.load()
    victims = [_different(number) for number in range(10_000)]
    records: tuple[Record, ...] = (*victims, *map(_hold_of, victims))
    server.traffic.attempts.clear()
    await before.journal.save(records, ())
    assert max(_sizes(server)) <= redo_log.PART_BYTES
    assert 2 <= server.traffic.attempts.total() <= SLOTS // 2
    server.traffic.writes.clear()
    await before.journal.save((replace(victims[0], step=CheckpointStep.COMMITTED),), ())
    [write] = server.traffic.writes
    assert (write.verb, write.name) == ("update", LOG_NAME)
    assert sum(map(len, write.body["binaryData"].values())) < 20_000, (
        "what is pending is not written again with every turn"
    )
    after = Writer(server, "after")
    expected = by_uid(records) | {victims[0].uid: replace(victims[0], step=CheckpointStep.COMMITTED)}
    assert by_uid(await after.journal.load()) == expected


async def test_hold_of_ten_thousand_victims_fits() -> None:
    uids = [str(uuid.UUID(int=Random(number).getrandbits(128))) for number in range(10_000)]
    hold = replace(HOLD, checkpoints=tuple(f"s.{uid}.1" for uid in uids), verdicts={})
    server = FakeApi()
    await (before := Writer(server, "before")).journal.load()
    await before.journal.save((hold,), ())
    assert by_uid(await Writer(server, "after").journal.load()) == {hold.uid: hold}


async def test_many_records_are_encoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    encode = codec.encode

    def watched(value: Any) -> bytes:
        threads.add(threading.get_ident())
        return encode(value)

    monkeypatch.setattr(codec, "encode", watched)
    await (writer := Writer(FakeApi(), "writer")).journal.load()
    await writer.journal.save(tuple(map(_different, range(redo_log.ENCODED_AT_ONCE + 1))), ())
    assert threads
    assert threading.get_ident() not in threads


async def test_segments_go_once_their_records_are_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo_log, "INLINE_BYTES", 10_000)
    server = FakeApi()
    process = Process(server, "process")
    await process.journal.load()
    victims = [_different(number) for number in range(1_000)]
    await process.journal.save(tuple(victims), ())
    head = server.objects[CONFIG_MAPS, SYSTEM, LOG_NAME]
    assert "segments.json" in head["binaryData"]
    await process.settle()
    await process.journal.save((victims[0],), ())
    head = server.objects[CONFIG_MAPS, SYSTEM, LOG_NAME]
    assert set(head["binaryData"]) == {"entries.json.zst"}
    await process.crash()


_FIRST = tuple(_different(number) for number in range(12))
_SECOND = tuple(_different(number, CheckpointStep.KILLING) for number in range(3, 18))


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("is_done", [False, True])
async def test_turn_is_whole_or_not_there_at_whatever_request_its_writer_dies(is_done: bool) -> None:
    for dies_at in range(1, 60):
        server = MortalServer()
        writer = Writer(server, "writer")
        await writer.journal.load()
        saved: dict[str, Record] = {}
        server.requests, server.dies_at, server.is_done = 0, dies_at, is_done
        turns = ((_FIRST, ()), (_SECOND, _FIRST[:3]), ((_SECOND[0],), _SECOND[1:2]))
        attempted = saved
        try:
            for records, forget in turns:
                gone = {one.uid for one in forget}
                attempted = {uid: one for uid, one in saved.items() if uid not in gone} | by_uid(records)
                await writer.journal.save(records, forget)
                saved = attempted
        except PowerFailureError:
            pass
        else:
            assert dies_at > 6, "the turns need several requests"
            return
        server.dies_at = 0
        found = by_uid(await Writer(server, "next").journal.load())
        assert found in (saved, attempted), f"request {dies_at}"
        is_head = found == attempted != saved
        assert is_done or not is_head, "what was not done is there"
    pytest.fail("it never came to an end")


@pytest.mark.usefixtures("tight")
async def test_who_is_fenced_off_between_two_requests_harms_nothing() -> None:
    """At each request of the old one, another takes over, saves a turn of its own and reads it back at the end."""
    for at in range(1, 30):
        server = MortalServer()
        old, new = Writer(server, "old"), Writer(server, "new")
        await old.journal.load()
        await old.journal.save(_FIRST, ())
        found: list[dict[str, Record]] = []

        async def take_over(server: MortalServer = server, new: Writer = new, found: list[Any] = found) -> None:
            server.dies_at = 0
            found.append(by_uid(await new.journal.load()))
            await new.journal.save(_SECOND[:9], ())

        server.requests, server.dies_at, server.before_request = 0, at, take_over
        was_fenced = False
        try:
            for turn in range(4):
                await old.journal.save(tuple(replace(one, reason=f"turn {turn}") for one in _SECOND), ())
        except FencedError:
            was_fenced = True
        if not found:
            assert at > 6
            return
        assert was_fenced
        with pytest.raises(FencedError):
            await old.journal.save(_FIRST, ())
        expected = found[0] | by_uid(_SECOND[:9])
        assert by_uid(await Writer(server, "third").journal.load()) == expected, f"request {at}"
    pytest.fail("it never came to an end")


@pytest.mark.usefixtures("tight")
@pytest.mark.parametrize("seed", range(60))
async def test_what_was_saved_is_loaded_whatever_was_refused_or_lost(seed: int) -> None:
    dice = Random(seed)
    server = MortalServer(dice, fault_rate=0.3)
    saved: dict[str, Record] = {}
    for life in range(4):
        writer = Writer(server, f"life-{life}")
        with pytest.MonkeyPatch.context() as patch:
            shorten_pauses(patch, 0.0001)
            assert by_uid(await writer.journal.load()) == saved
        for _ in range(dice.randrange(8)):
            numbers = dice.sample(range(30), dice.randrange(1, 20))
            forget = tuple(
                saved[uid] for number in numbers if (uid := f"s.w{number}.1") in saved and dice.random() < 0.2
            )
            gone = {one.uid for one in forget}
            steps = [CheckpointStep.DUMPING, CheckpointStep.KILLING, CheckpointStep.FROZEN]
            made = [_different(number, dice.choice(steps)) for number in numbers]
            records = tuple(one for one in made if one.uid not in gone)
            await writer.save(records, forget)
            saved = {uid: one for uid, one in saved.items() if uid not in gone} | by_uid(records)


@pytest.mark.parametrize("status", REFUSALS)
async def test_refusal_is_tried_again_and_ends_nobody(status: int) -> None:
    server = FakeApi()
    await (writer := Writer(server, "writer")).journal.load()
    server.traffic.refusing[CONFIG_MAPS] = status
    with pytest.raises(ApiUnavailableError):
        await writer.journal.save(_FIRST, ())
    server.traffic.refusing.clear()
    await writer.journal.save(_FIRST, ())
    assert by_uid(await Writer(server, "next").journal.load()) == by_uid(_FIRST)


async def test_log_that_cannot_be_made_is_said_not_to_be() -> None:
    """Its namespace is gone: 404, which is no race with another writer, and is not asked for again at once."""
    server = FakeApi()
    server.traffic.gone_namespaces[SYSTEM] = NO_NAMESPACE
    async with asyncio.timeout(60):
        with pytest.raises(AbsentError):
            await redo_log.RedoLog(server, SYSTEM, "writer").take_over()


@pytest.mark.usefixtures("tight")
async def test_part_that_cannot_be_made_is_said_not_to_be() -> None:
    server = FakeApi()
    await (writer := Writer(server, "writer")).journal.load()
    server.traffic.gone_namespaces[SYSTEM] = NO_NAMESPACE
    async with asyncio.timeout(60):
        with pytest.raises(ApiUnavailableError):
            await writer.journal.save(tuple(map(_different, range(8))), ())


@pytest.mark.usefixtures("tight")
async def test_log_that_somebody_deleted_is_made_again_whole() -> None:
    server = FakeApi()
    await (writer := Writer(server, "writer")).journal.load()
    await writer.journal.save(_FIRST, ())
    for body in server.all_of(CONFIG_MAPS):
        server.remove(CONFIG_MAPS, body["metadata"]["name"], SYSTEM)
    await writer.journal.save(_SECOND, ())
    assert by_uid(await Writer(server, "next").journal.load()) == by_uid(_FIRST) | by_uid(_SECOND)


@pytest.mark.usefixtures("tight")
async def test_damaged_part_leaves_what_the_rest_of_the_log_says() -> None:
    server = FakeApi()
    await (writer := Writer(server, "writer")).journal.load()
    await writer.journal.save(_FIRST, ())
    await writer.journal.save(_SECOND[12:14], ())
    server.objects[CONFIG_MAPS, SYSTEM, f"{LOG_NAME}-0"]["binaryData"]["part"] = base64.b64encode(b"else").decode()
    assert by_uid(await Writer(server, "next").journal.load()) == by_uid(_SECOND[12:14])


@pytest.mark.usefixtures("tight")
async def test_log_that_is_full_is_said_to_be_and_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redo_log, "SLOTS", 3)
    server = FakeApi()
    await (writer := Writer(server, "writer")).journal.load()
    with pytest.raises(ApiUnavailableError, match=r"the journal is full: 12 records"):
        await writer.journal.save(_FIRST, ())
    await writer.journal.save(_FIRST[:1], ())
    assert by_uid(await Writer(server, "next").journal.load()) == by_uid(_FIRST[:1])
