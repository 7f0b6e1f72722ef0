"""A policy may keep more generations than are read of one workload."""
from pathlib import Path

import pytest

from cedana_sched.model.policy import Retention
from cedana_sched.store import generations
from tests.unit.store.test_crowded_workloads import STREAMS, WORKLOAD, SnapshotStore, CountingBackend, take


def test_what_the_retention_gives_up_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "MOST_GENERATIONS", 3)
    store = SnapshotStore(CountingBackend(tmp_path))
    for _ in range(20):
        take(store, WORKLOAD, STREAMS)
        store.apply_retention(WORKLOAD, Retention(keep_last=10))
    assert len(store.list()) == 10
