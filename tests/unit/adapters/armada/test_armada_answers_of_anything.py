"""Whatever Armada's events, its notes and a provider of tokens say, the adapter hears the next preemption."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from aiohttp import web
from armada_client.armada import event_pb2, submit_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched_armada import credentials, ledger
from cedana_sched_armada.credentials import ClientCredentials
from cedana_sched_armada.errors import ArmadaError
from cedana_sched_armada.events import JobEvent, event_position_key, id_before, read_event, submission_time_of_job
from cedana_sched_armada.job_of_pod import CARDINALITY, GANG
from cedana_sched_armada.ledger import Ledger
from cedana_sched_armada.settings import OidcSettings
from tests.unit.adapters.armada.armada_builders import JOB_SET, QUEUE, KeptNotes, World, preempted
from tests.unit.adapters.armada.test_armada_credentials import _provider
from tests.unit.store.test_any_bytes_in_the_store import VALUES

TEXTS = ("", "x", "é", "../x", "9" * 5_000, "01" + "z" * 24, "\0", "01arz3ndektsv4rrffq69g5fav")
MOMENTS = (0, -1, 1, 1 << 40, (1 << 63) - 1, -(1 << 63))
KINDS = tuple(event_pb2.EventMessage.DESCRIPTOR.fields_by_name)


def hostile() -> Iterator[event_pb2.EventMessage]:
    """Each kind of event, with each of its texts and its time as they should not be."""
    for kind in KINDS:
        yield _event(kind)
        described = event_pb2.EventMessage.DESCRIPTOR.fields_by_name[kind].message_type
        assert described is not None
        for field in described.fields:
            if field.cpp_type == field.CPPTYPE_STRING and not field.is_repeated:
                yield from (_event(kind, **{field.name: text}) for text in TEXTS)
        for moment in MOMENTS:
            message = _event(kind)
            getattr(message, kind).created.seconds = moment
            getattr(message, kind).created.nanos = -(1 << 31) if moment < 0 else (1 << 31) - 1
            yield message
    for cardinality in TEXTS:
        annotations = {GANG: "g", CARDINALITY: cardinality}
        job = submit_pb2.Job(id="01g", queue=QUEUE, job_set_id=JOB_SET, annotations=annotations)
        yield event_pb2.EventMessage(submitted=event_pb2.JobSubmittedEvent(job_id="01g", job=job))


def _event(kind: str, **fields: str) -> event_pb2.EventMessage:
    message = event_pb2.EventMessage()
    event = getattr(message, kind)
    event.SetInParent()
    for name, value in fields.items():
        setattr(event, name, value)
    return message


async def test_after_any_events_a_preemption_is_heard(world: World) -> None:
    job = world.running()
    known = [*world.armada.jobs]
    async with world.coordinator() as coordinator:
        for message in hostile():
            world.armada._see((QUEUE, JOB_SET), [message])
            kind = message.WhichOneof("events")
            assert kind is not None
            event = getattr(message, kind)
            if kind not in {"preempted", "cancelled", "failed", "succeeded", "cancelling"}:
                event.job_id = known[0]
                world.armada._see((QUEUE, JOB_SET), [message])
        other = world.running()
        assert (await preempted(world, coordinator, other)).uid.startswith(other)
        assert coordinator.running is not None
        assert not coordinator.running.done()
    assert job != other


@given(st.binary(max_size=200) | st.sampled_from([one.SerializeToString() for one in hostile()]), st.text(max_size=30))
@settings(deadline=None, max_examples=200)
def test_any_event_is_read_or_passed_over(data: bytes, identifier: str) -> None:
    told = event_pb2.EventStreamMessage(id=identifier)
    try:
        told.message.ParseFromString(data)
    except DecodeError:
        return
    heard = read_event(told)
    if heard is not None:
        assert isinstance(heard, JobEvent)
        assert id_before(heard.at)
        assert submission_time_of_job(heard.job) >= 0
    event_position_key(identifier)


TEXT = zlib.compress(b'{"version":1,"streams":[]}')
STATES = VALUES.map(lambda value: zlib.compress(msgspec.json.encode({"version": 1, "cases": value}, enc_hook=str)))


@given(
    st.binary(max_size=60) | STATES
    | st.sampled_from([TEXT[:-3], TEXT + b"x", zlib.compress(b"\xff"), zlib.compress(b"[" * 100_000),
                       zlib.compress(b'{"x":' + b"[" * 100_000), zlib.compress(b'{"version":"\xff"}')])
)  # fmt: skip
@settings(deadline=None)
def test_any_notes_are_read_or_begun_anew(text: bytes) -> None:
    async def _load() -> None:
        kept = KeptNotes()
        kept.text = text
        await Ledger(kept).load()

    with structlog.testing.capture_logs():
        asyncio.run(_load())


def test_notes_that_are_larger_than_any_of_ours_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_BYTES_UNPACKED", 1 << 20)
    packed = zlib.compress(b'{"version":1}' + b" " * (64 << 20))
    tracemalloc.start()
    try:
        assert ledger._decode_state(packed) == ledger._LedgerState()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


BODIES = (
    b"", b"[", b"\xff", b"null", b"7", b"[" * 100_000, b'{"access_token": 7}',
    b'{"access_token": "a", "expires_in": "x"}',
    b'{"access_token": "a", "x": ' + b"[" * 100_000, b'{"access_token": "a\\nb"}', '{"access_token": "é"}'.encode(),
    b'{"access_token": "\xff"}', b'{"access_token": "a", "expires_in": 1e999}',
)  # fmt: skip
ENDPOINTS = ("", "x", "http://[", "http://localhost:99999/", "ftp://localhost/", "http://\0/", "http://" + "a" * 300, 7)


def _settings(url: str, folder: Path) -> OidcSettings:
    (secret := folder / "secret").write_text("s3cret")
    return OidcSettings(provider_url=url, client_id="cedana", client_secret_file=secret)


@pytest.mark.parametrize("body", BODIES)
async def test_any_answer_of_a_provider_is_an_error_in_words(tmp_path: Path, body: bytes) -> None:
    answers = [web.Response(body=body), web.json_response({"access_token": "good"})]
    async with _provider(answers) as (url, _):
        provided = ClientCredentials(_settings(url, tmp_path))
        with pytest.raises(ArmadaError):
            await provided.metadata()
        assert await provided.metadata() == (("authorization", "Bearer good"),)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_any_endpoint_that_a_provider_names_is_an_error_in_words(
    tmp_path: Path, endpoint: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(_: Any) -> bytes:
        return json.dumps({"token_endpoint": endpoint}).encode()

    monkeypatch.setattr(credentials, "_read_response_body", body)
    async with _provider([]) as (url, _):
        with pytest.raises(ArmadaError):
            await ClientCredentials(_settings(url, tmp_path)).metadata()


async def test_of_an_answer_without_end_a_part_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LONGEST_ANSWER", 1 << 10)
    body = json.dumps({"access_token": "a" * (1 << 20)}).encode()
    async with _provider([web.Response(body=body)]) as (url, _):
        with pytest.raises(ArmadaError):
            await ClientCredentials(_settings(url, tmp_path)).metadata()
