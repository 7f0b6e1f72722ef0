"""What the save of a pod takes: by its Checkpoints on the node, else by its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched_kubernetes.save_estimates import (
    ASSUMED_BYTES_PER_SECOND,
    MEASURED,
    UNKNOWN_MEMORY_BYTES,
    PodResources,
    estimate_save,
    measured_rate,
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


def checkpoint(
    used: int, moved: int, *, ago: float, seconds: float | None = 10, uid: str = "pod-1", phase: str = "Ready"
) -> MeasuredCheckpoint:
    identity = {"id": "md", "index": 0, "container": "main"}
    status: dict[str, Any] = {
        "phase": phase,
        "step": phase,
        "commitTime": time(ago),
        "snapshot": {**identity, "generation": 1},
        "transfer": {"readBytes": used + 7 * GIB, "zeroBytes": 7 * GIB, "reusedBytes": used - moved},
    }
    if seconds is not None:
        status["freezeTime"] = time(ago + seconds)
    spec = {"identity": identity, "podRef": {"uid": uid, "name": "md-0", "nodeName": "n"}}
    return msgspec.convert({"metadata": {"name": "c"}, "spec": spec, "status": status}, MeasuredCheckpoint)


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
    save = estimate_save(pod(*resources), [checkpoint(GIB, GIB, ago=60, uid="another")], NOW)
    assert (save.uid, save.bytes_to_move) == ("pod-1", memory)
    assert save.work == pytest.approx(600 * cores)


def test_a_pod_that_was_saved_once_moves_all_of_it() -> None:
    save = estimate_save(pod({"limits": {"memory": "9Gi"}}), [checkpoint(3 * GIB, 3 * GIB, ago=60)], NOW)
    assert save.bytes_to_move == 3 * GIB
    assert save.work == pytest.approx(60 * 0.1), "what was saved is not lost"


@pytest.mark.parametrize(("ago", "moved"), [(50, GIB // 2), (100, GIB), (400, 3 * GIB)])
def test_a_pod_that_was_saved_twice_moves_what_has_changed(ago: float, moved: int) -> None:
    earlier, newest = checkpoint(3 * GIB, 3 * GIB, ago=ago + 100), checkpoint(3 * GIB, GIB, ago=ago)
    for known in ([earlier, newest], [newest, earlier]):
        assert estimate_save(pod(), known, NOW).bytes_to_move == moved


def test_checkpoints_that_failed_save_nothing() -> None:
    save = estimate_save(pod(), [checkpoint(GIB, GIB, ago=60, phase="Failed")], NOW)
    assert save.bytes_to_move == UNKNOWN_MEMORY_BYTES


def test_a_pod_without_a_start_has_no_work_to_lose() -> None:
    assert estimate_save(pod(started=None), [], NOW).work == 0


def test_the_rate_of_a_node() -> None:
    assert measured_rate([]) == ASSUMED_BYTES_PER_SECOND
    too_small = checkpoint(GIB, 1 << 20, ago=5)
    undated = checkpoint(GIB, GIB, ago=5, seconds=None)
    assert measured_rate([too_small, undated]) == ASSUMED_BYTES_PER_SECOND
    fast, slow = (checkpoint(GIB, GIB, ago=ago, seconds=seconds) for ago, seconds in ((5, 3), (9, 9)))
    assert measured_rate([fast, too_small, slow]) == pytest.approx(2 * GIB / (2 + 8))
    old = checkpoint(GIB, GIB, ago=900, seconds=900)
    many = [checkpoint(GIB, GIB, ago=5 * number, seconds=3) for number in range(MEASURED)]
    assert measured_rate([*many, old]) == pytest.approx(GIB / 2), "the newest count"


def test_saves_that_overlap_share_the_rate_of_their_node() -> None:
    long, inner, later = (checkpoint(GIB, GIB, ago=ago, seconds=seconds) for ago, seconds in ((5, 20), (9, 4), (3, 4)))
    alone = checkpoint(GIB, GIB, ago=100, seconds=11)
    for order in ([long, inner, later, alone], [alone, later, inner, long]):
        assert measured_rate(order) == pytest.approx(4 * GIB / (21 + 10))
