"""A policy keeps no more generations of a workload than are read of it, so each that it gives up goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from annotated_types import Le

from cedana_sched.model.policy import Retention
from cedana_sched.store import generation_names
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take
from tests.unit.store.test_crowded_workloads import STREAMS, WORKLOAD


def test_a_policy_may_keep_half_of_what_is_read_at_most() -> None:
    limits = [one.le for one in Retention.model_fields["keep_last"].metadata if isinstance(one, Le)]
    assert limits == [generation_names.MOST_GENERATIONS // 2], "as many are kept that were left behind"


def test_what_the_retention_gives_up_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_names, "MOST_GENERATIONS", 6)
    store = SnapshotStore(CountingBackend(tmp_path))
    for _ in range(20):
        take(store, WORKLOAD, STREAMS)
        store.apply_retention(WORKLOAD, Retention(keep_last=3))
    assert len(store.list()) == 3
