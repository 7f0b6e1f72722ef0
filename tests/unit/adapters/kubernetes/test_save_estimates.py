"""What the save of a pod takes: by its snapshots on the node, else by its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched_kubernetes.save_estimates import (
    UNKNOWN_MEMORY_BYTES,
    PodResources,
    estimate_save,
)

NOW = 1_800_000_000.0
GIB = 1 << 30


def pod(*containers: dict[str, dict[str, str]], started: float | None = 600) -> PodResources:
    body: dict[str, Any] = {
        "metadata": {"uid": "pod-1"},
        "spec": {"containers": [{"resources": one} for one in containers]},
        "status": {} if started is None else {"startTime": time(started)},
    }
    return msgspec.convert(body, PodResources)


def time(ago: float) -> str:
    return utc_datetime_of(NOW - ago).isoformat()


def checkpoint(used: int, moved: int, *, ago: float) -> MeasuredCheckpoint:
    status: dict[str, Any] = {"commitTime": time(ago), "transfer": {"readBytes": used + 7 * GIB, "zeroBytes": 7 * GIB}}
    status["transfer"]["reusedBytes"] = used - moved
    body = {"metadata": {"name": "c"}, "spec": {"identity": {"id": "md"}}, "status": status}
    return msgspec.convert(body, MeasuredCheckpoint)


@pytest.mark.parametrize(
    ("resources", "memory", "cores"),
    [
        ((), UNKNOWN_MEMORY_BYTES, 0.1),
        (({"requests": {"memory": "2Gi", "cpu": "1500m"}},), 2 * GIB, 1.5),
        (({"requests": {"memory": "2Gi", "cpu": "2"}, "limits": {"memory": "3Gi", "cpu": "4"}},), 3 * GIB, 2),
        (({"requests": {"memory": "32Gi", "cpu": "1"}},), 32 * GIB, 8),
        (({"limits": {"memory": "1Gi"}}, {"requests": {"memory": "1Gi"}}), 2 * GIB, 0.25),
        (({"limits": {"memory": "nonsense"}},), UNKNOWN_MEMORY_BYTES, 0.1),
    ],
)
def test_a_pod_that_was_never_saved(resources: Sequence[dict[str, dict[str, str]]], memory: int, cores: float) -> None:
    save = estimate_save(pod(*resources), [], 7e6, NOW)
    assert (save.uid, save.bytes_to_move, save.bytes_per_second) == ("pod-1", memory, 7e6)
    assert save.work == pytest.approx(600 * cores)


def test_a_pod_that_was_saved_once_moves_all_of_it() -> None:
    save = estimate_save(pod({"limits": {"memory": "9Gi"}}), [checkpoint(3 * GIB, 3 * GIB, ago=60)], 7e6, NOW)
    assert save.bytes_to_move == 3 * GIB
    assert save.work == pytest.approx(60 * 0.1), "what was saved is not lost"


@pytest.mark.parametrize(("ago", "moved"), [(50, GIB // 2), (100, GIB), (400, 3 * GIB)])
def test_a_pod_that_was_saved_twice_moves_what_has_changed(ago: float, moved: int) -> None:
    earlier, newest = checkpoint(3 * GIB, 3 * GIB, ago=ago + 100), checkpoint(3 * GIB, GIB, ago=ago)
    assert estimate_save(pod(), [earlier, newest], 7e6, NOW).bytes_to_move == moved


def test_a_pod_without_a_start_has_no_work_to_lose() -> None:
    assert estimate_save(pod(started=None), [], 7e6, NOW).work == 0


def test_a_pod_has_not_worked_before_it_was_created() -> None:
    """A tenant may write any time into the status."""
    claimed = pod({"requests": {"cpu": "1"}}, started=50 * 365 * 86_400)
    created = msgspec.structs.replace(claimed.metadata, creation_timestamp=time(60))
    assert estimate_save(msgspec.structs.replace(claimed, metadata=created), [], 7e6, NOW).work == pytest.approx(60)


def resized(requested: dict[str, dict[str, str]], granted: dict[str, dict[str, str]] | None) -> PodResources:
    body = {
        "metadata": {"uid": "pod-1"},
        "spec": {"containers": [{"name": "main", "resources": requested}]},
        "status": {"containerStatuses": [{"name": "main"} | ({} if granted is None else {"resources": granted})]},
    }
    return msgspec.convert(body, PodResources)


SMALL: dict[str, dict[str, str]] = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
HUGE: dict[str, dict[str, str]] = {"requests": {"cpu": "9000", "memory": "9Ti"}, "limits": {"memory": "9Ti"}}


@pytest.mark.parametrize(
    ("requested", "granted", "cores", "memory"),
    [
        (SMALL, SMALL, 1, 2 * GIB),
        (SMALL, None, 1, 2 * GIB),
        (HUGE, SMALL, 1, 9 << 40),
        (SMALL, HUGE, 1, 9 << 40),
        ({}, {}, 0.1, 0),
    ],
    ids=["as requested", "not reported", "more than the node grants", "less than before", "neither"],
)
def test_resources_that_a_pod_requests_meanwhile_have_it_saved_no_earlier(
    requested: dict[str, dict[str, str]], granted: dict[str, dict[str, str]] | None, cores: float, memory: int
) -> None:
    found = resized(requested, granted)
    assert (found.cores, found.memory_bytes) == (cores, memory)
