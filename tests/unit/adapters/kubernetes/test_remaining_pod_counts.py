"""The pods of a controller are counted by age as they come, change and go, whatever their number."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod, PodStatus
from cedana_sched_kubernetes.remaining_pod_counts import RemainingPodCounts
from tests.unit.coordinator.core.test_work_is_linear import SLACK, Work

CONTROLLER = ("bio", "set-uid")
DELETED = "2026-05-01T12:10:30Z"


def pod(number: int, *, phase: str = "Running", deleted: bool = False, of: str = "set-uid") -> Pod:
    """Created in this second of the epoch."""
    created_at = f"{datetime.fromtimestamp(number, tz=UTC):%Y-%m-%dT%H:%M:%SZ}"
    owner = OwnerReference("apps/v1", "ReplicaSet", "md", of, controller=True)
    metadata = Metadata(
        f"md-{number}", "bio", f"uid-{number}", owner_references=(owner,), creation_timestamp=created_at
    )
    ends = DELETED if deleted else None
    return Pod(msgspec.structs.replace(metadata, deletion_timestamp=ends), status=PodStatus(phase=phase))


def test_pods_created_before_a_time_are_counted_until_they_are_deleted_or_end() -> None:
    counts = RemainingPodCounts()
    for number in (3, 1, 2):
        counts.on_pod_change(None, pod(number))
    counts.on_pod_change(None, pod(1, of="another"))
    assert [counts.count_older(CONTROLLER, than) for than in (1, 2, 3, 4)] == [0, 1, 2, 3]
    counts.on_pod_change(pod(1), pod(1, deleted=True))
    counts.on_pod_change(pod(2), pod(2, phase="Succeeded"))
    assert counts.count_older(CONTROLLER, 4) == 1
    counts.on_pod_change(pod(1, deleted=True), None)
    counts.on_pod_change(pod(3), None)
    assert counts.count_older(CONTROLLER, 4) == 0


@pytest.mark.parametrize("size", [400, 1_000])
def test_work_grows_no_faster_than_the_deletions(size: int) -> None:
    def delete_all(count: int, budget: float = float("inf")) -> int:
        pods = [pod(number) for number in range(count)]
        deleted = [pod(number, deleted=True) for number in range(count)]
        counts = RemainingPodCounts()
        with Work(budget) as work:
            for one in pods:
                counts.on_pod_change(None, one)
            for number, one in enumerate(pods):
                counts.on_pod_change(one, deleted[number])
                assert counts.count_older(CONTROLLER, count) == count - number - 1
        return work.done

    few = 100
    delete_all(size, delete_all(few) / few * size * SLACK)
