"""The annotation of a node that is about to be interrupted: written by agents, and read as input."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.names import NODE_INTERRUPTION
from cedana_sched.model.objects.node_interruption import (
    InterruptionKind,
    InterruptionSource,
    NodeInterruption,
    most_urgent,
    parse_interruption,
    read_interruption,
    serialized_interruption,
)

NOW = datetime(2026, 11, 28, 10, tzinfo=UTC)
TEXT = (
    '{"source":"aws","kind":"Termination",'
    '"notBefore":"2026-11-28T10:02:00.000+00:00","observed":"2026-11-28T10:00:00.000+00:00"}'
)


def notice(kind: InterruptionKind, seconds: float | None, *, observed: float = 0) -> NodeInterruption:
    ends_at = None if seconds is None else NOW + timedelta(seconds=seconds)
    return NodeInterruption.from_times(InterruptionSource.AWS, kind, ends_at, NOW + timedelta(seconds=observed))


TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]))


@given(
    source=st.sampled_from(InterruptionSource),
    kind=st.sampled_from(InterruptionKind),
    ends_at=st.none() | TIMES.filter(lambda time: 2 < time.year < 9998),
    observed=TIMES.filter(lambda time: 2 < time.year < 9998),
)
def test_what_is_written_is_read(
    source: InterruptionSource, kind: InterruptionKind, ends_at: datetime | None, observed: datetime
) -> None:
    written = NodeInterruption.from_times(source, kind, ends_at, observed)
    assert read_interruption({NODE_INTERRUPTION: serialized_interruption(written)}) == written


def test_the_annotation() -> None:
    written = notice(InterruptionKind.TERMINATION, 120)
    assert serialized_interruption(written) == TEXT
    assert written.ends_at == NOW.timestamp() + 120
    unknown = notice(InterruptionKind.RISK, None)
    assert unknown.ends_at is None
    assert '"notBefore":null' in serialized_interruption(unknown)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "null",
        "[" * 600,
        TEXT[:-1],
        TEXT.replace("aws", "moon"),
        TEXT.replace("Termination", "Party"),
        TEXT.replace("10:02:00.000+00:00", "10:02:00Z"),
        TEXT.replace("10:02:00.000+00:00", "10:02:00.000+01:00"),
        TEXT.replace("10:02:00.000+00:00", "10:02:00.000"),
        TEXT.replace("2026-11-28T10:02", "2026-13-28T10:02"),
        TEXT.replace("observed", "seen"),
        TEXT.replace('"2026-11-28T10:02:00.000+00:00"', "1764324120"),
        TEXT + " " * 600,
    ],
)
def test_other_texts_are_no_notice(text: str) -> None:
    assert read_interruption({NODE_INTERRUPTION: text}) is None
    assert read_interruption({}) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "is no notice of interruption: Object missing required field `source`"),
        (TEXT.replace("10:02:00.000+00:00", "10:02:00Z"), "has another format of time in notBefore"),
        (TEXT + " " * 600, "is longer than 512 characters"),
        (TEXT.replace("aws", "moon"), "Invalid enum value 'moon'"),
    ],
)
def test_an_unreadable_text_is_an_error_with_field_value_and_remedy(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=re.escape(problem)) as raised:
        parse_interruption({NODE_INTERRUPTION: text})
    assert raised.value.field == "metadata.annotations[sched.cedana.ai/interruption]"
    assert raised.value.value == text[:512]
    assert "observed, with times such as 2026-11-28T10:02:00.000+00:00" in raised.value.remedy
    assert parse_interruption({}) is None


def test_fields_of_newer_versions_are_ignored() -> None:
    assert read_interruption({NODE_INTERRUPTION: TEXT[:-1] + ',"zone":"b"}'}) == notice(
        InterruptionKind.TERMINATION, 120
    )


def test_the_most_urgent_notice() -> None:
    assert most_urgent([]) is None
    ends, restarts, risk = InterruptionKind.TERMINATION, InterruptionKind.MAINTENANCE, InterruptionKind.RISK
    by_urgency = [
        notice(restarts, None, observed=-5),
        notice(ends, 30),
        notice(ends, None, observed=60),
        notice(restarts, 900),
        notice(risk, None, observed=-60),
    ]
    for number, expected in enumerate(by_urgency):
        assert most_urgent(by_urgency[number:]) == most_urgent(reversed(by_urgency[number:])) == expected


@pytest.mark.parametrize(
    ("announced", "is_shutdown"),
    [
        pytest.param(notice(InterruptionKind.TERMINATION, 120), True, id="for that time"),
        pytest.param(notice(InterruptionKind.MAINTENANCE, None), True, id="for an unknown time"),
        pytest.param(notice(InterruptionKind.TERMINATION, 130), False, id="for a time before its end"),
        pytest.param(notice(InterruptionKind.TERMINATION, 900), True, id="for a time after its end"),
        pytest.param(notice(InterruptionKind.RISK, None), True, id="as a risk"),
    ],
)
def test_shutdown_that_has_begun_is_the_end_that_was_announced(announced: NodeInterruption, is_shutdown: bool) -> None:
    """The kubelet ends the pods, and only this notice says which of them are saved and which end at once."""
    shutdown = notice(InterruptionKind.SHUTDOWN, 140, observed=120)
    expected = shutdown if is_shutdown else announced
    assert most_urgent([shutdown, announced]) == most_urgent([announced, shutdown]) == expected


def test_a_notice_that_is_read_again() -> None:
    first = notice(InterruptionKind.TERMINATION, 30)
    assert msgspec.structs.replace(first, observed="2026-11-28T10:00:05.000+00:00").is_same_notice(first)
    assert not notice(InterruptionKind.TERMINATION, 31).is_same_notice(first)
    assert not first.is_same_notice(None)
