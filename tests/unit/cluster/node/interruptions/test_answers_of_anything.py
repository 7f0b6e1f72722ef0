"""Whatever a metadata server answers, it is a notice, none, or an error that is retried."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.cluster.node.interruptions.aws_notices import parse_instance_action, parse_rebalance
from cedana_sched.cluster.node.interruptions.azure_notices import parse_events, parse_notice
from cedana_sched.cluster.node.interruptions.gcp_notices import parse_maintenance_event, parse_preempted
from cedana_sched.cluster.node.interruptions.metadata_server import MetadataAnswer, MetadataError
from cedana_sched.model.objects.names import NODE_INTERRUPTION
from cedana_sched.model.objects.node_interruption import (
    NodeInterruption,
    read_interruption,
    serialized_interruption,
)

NOW = datetime(2026, 11, 28, 10, tzinfo=UTC)
MACHINE = "vm-1"
KEYS = st.sampled_from(["time", "noticeTime", "action", "Events", "EventId", "EventType", "EventStatus", "Resources",
                        "NotBefore", "DocumentIncarnation"])  # fmt: skip
TEXTS = st.text(max_size=40) | st.sampled_from(
    ["2026-11-28T10:02:00Z", "Sat, 28 Nov 2026 10:02:00 GMT", "Preempt", "Scheduled", MACHINE, "0001-01-01T00:00+23:59"]
) | st.datetimes().map(datetime.isoformat)  # fmt: skip
DOCUMENTED_BY_GCP = {
    "TRUE",
    "FALSE",
    "NONE",
    "MIGRATE_ON_HOST_MAINTENANCE",
    "TERMINATE_ON_HOST_MAINTENANCE",
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)
BODIES = st.binary(max_size=60) | VALUES.map(msgspec.json.encode)


def answer(body: bytes, status: int = 200) -> MetadataAnswer:
    return MetadataAnswer("http://127.0.0.1/x", status, {}, body)


def azure(answered: MetadataAnswer, now: datetime) -> NodeInterruption | None:
    return next((parse_notice(event, now) for event in parse_events(answered, MACHINE)), None)


@pytest.mark.parametrize("parse", [parse_instance_action, parse_rebalance, azure])
@given(body=BODIES, status=st.sampled_from([200, 200, 404]))
def test_answers(parse: Callable[[MetadataAnswer, datetime], Any], body: bytes, status: int) -> None:
    with suppress(MetadataError):
        notice = parse(answer(body, status), NOW)
        if notice is not None:
            assert read_interruption({NODE_INTERRUPTION: serialized_interruption(notice)}) == notice


@pytest.mark.parametrize("parse", [parse_preempted, parse_maintenance_event])
@given(value=TEXTS.filter(lambda text: text not in DOCUMENTED_BY_GCP))
def test_values_of_gcp(parse: Callable[[str, datetime], Any], value: str) -> None:
    with pytest.raises(MetadataError, match=r"GCP documents|neither TRUE nor FALSE"):
        parse(value, NOW)


@given(not_before=TEXTS.filter(bool))
def test_times_of_azure(not_before: str) -> None:
    event = {"EventId": "e", "EventType": "Preempt", "EventStatus": "Scheduled", "Resources": [MACHINE]}
    body = msgspec.json.encode({"Events": [{**event, "NotBefore": not_before}]})
    with suppress(MetadataError):
        notice = azure(answer(body), NOW)
        assert notice is not None
        assert read_interruption({NODE_INTERRUPTION: serialized_interruption(notice)}) == notice
