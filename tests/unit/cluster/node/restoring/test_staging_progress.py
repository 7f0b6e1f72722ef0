"""Who waits for a pod reads in its log how much of the snapshot has come."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring import staging_progress
from cedana_sched.cluster.node.restoring.staging_progress import StagingProgress
from cedana_sched.model.objects.names import RESTORE_VOLUME

_MIB = 1 << 20


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "pods/uid/volumes/kubernetes.io~empty-dir" / RESTORE_VOLUME
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> StagingProgress:
    return StagingProgress(HostPaths(pods=tmp_path / "pods"))


def test_only_some_of_many_lines_are_told_and_the_last_always(volume: Path, staging: StagingProgress) -> None:
    for done in range(1, 101):
        staging.print_progress("uid", done * _MIB, 100 * _MIB)
    assert (volume / "progress").read_text().splitlines() == [
        "1 of 100 MiB of the snapshot are on this node",
        "100 of 100 MiB of the snapshot are on this node",
    ]


def test_lines_follow_one_another_in_time(
    volume: Path, staging: StagingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_progress, "EVERY_SECONDS", 0.0)
    for done in (10, 50):
        staging.print_progress("uid", done * _MIB, 100 * _MIB)
    assert len((volume / "progress").read_text().splitlines()) == 2


def test_nobody_is_told_before_the_volume_is_there(staging: StagingProgress) -> None:
    staging.print_progress("somebody-else", _MIB, 2 * _MIB)
