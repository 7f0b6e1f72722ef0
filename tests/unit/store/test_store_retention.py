"""Retention: which generations a policy gives up."""

from __future__ import annotations

import pytest

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import SnapshotSummary, TransferStats
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.retention import expired_snapshots

WORKLOAD = Identity("team-a", "job.with.dots", 2, "side_car")


def summary(generation: int, committed_at: float) -> SnapshotSummary:
    return SnapshotSummary(
        ref=SnapshotRef(WORKLOAD, generation),
        writer="w",
        checkpoint_uid=str(generation),
        committed_at=committed_at,
        taken_at=committed_at,
        reason="",
        adapter="",
        labels={},
        stats=TransferStats(),
        packs=(),
        page_index=None,
    )


@pytest.mark.parametrize(
    ("policy", "ages", "want"),
    [
        (Retention(keep_last=3), [50, 40, 30, 20, 10], [1, 2]),
        (Retention(keep_last=1), [50, 40, 30], [1, 2]),
        (Retention(keep_last=9), [50, 40, 30], []),
        (Retention(keep_last=9, max_age_seconds=35), [50, 40, 30], [1, 2]),
        (Retention(keep_last=1, max_age_seconds=5), [50], []),
        (Retention(keep_last=2, max_age_seconds=45), [60, 50, 40, 30], [1, 2]),
        (Retention(keep_last=1), [], []),
    ],
)
def test_the_policy_gives_up_what_is_too_old_or_too_many_but_never_the_newest(
    policy: Retention, ages: list[int], want: list[int]
) -> None:
    summaries = [summary(number, 1000.0 - age) for number, age in enumerate(ages, 1)]

    gone = expired_snapshots(list(reversed(summaries)), policy, 1000.0)

    assert [ref.generation for ref in gone] == want


@pytest.mark.parametrize("writer", [None, "0123456789abcdef" * 2])
def test_keys_of_generations_are_read_back(writer: str | None) -> None:
    ref = SnapshotRef(WORKLOAD, 12)

    assert layout.parse_generation_key(layout.manifest_key(ref, writer)) == (WORKLOAD, 12, writer, "manifest")
    assert layout.parse_generation_key(layout.removed_key(ref)) == (WORKLOAD, 12, None, "removed")
    assert layout.parse_generation_key(f"{layout.identity_folder(WORKLOAD)}/something-else") is None
