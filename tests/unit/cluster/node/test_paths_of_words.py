"""No word of an object, an order or a manifest leads a root process out of its folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from cedana_sched.agent.capture_messages import criu_directory
from cedana_sched.agent.capture_processes import CaptureProcesses
from cedana_sched.agent.staging import Staging
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.ephemeral_volumes import volumes_of
from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.cluster.node.restoring.restore_preparation import _volume_folder
from cedana_sched.cluster.node.restoring.restore_states import IncarnationRecords
from cedana_sched.model.errors import CedanaSchedError, RestoreError, UsageError
from cedana_sched.model.path_segment_validation import is_pod_uid, is_record_uid, is_segment
from cedana_sched.model.preemption import WorkloadRef

STRANGE = ("../victim", "..", "", "/etc", "a/b", ".hidden", "x\n", "x\0", "ü", "x" * 241)


async def _nothing(_: str) -> None: ...


@pytest.mark.parametrize("word", STRANGE)
def test_such_words_are_none(word: str) -> None:
    assert not is_segment(word)
    assert not is_record_uid(word)
    assert not is_pod_uid(word)


def test_words_of_ours_are() -> None:
    pod = "5f2b8c1e-6d7a-4c2f-9a52-2f6c0d8e1b37"
    assert is_record_uid(f"{pod}@2026-11-20T10:00:00.000+00:00~2026-11-20T10:00:01Z.{pod}.12")
    assert is_record_uid(f"restore.{pod}.2")
    assert is_record_uid(f"01hq@01hr.{pod}.1")
    assert is_pod_uid(pod)
    assert is_pod_uid("8d777f385d3dfec8815d20f7496026dc")
    assert is_segment("_shm")
    assert is_segment("pvc-1.data")


PATHS: dict[str, Callable[[Path, str], object]] = {
    "staged": lambda base, word: Staging(base, "4.2").remove(word),
    "container": criu_directory,
    "pod": lambda base, word: HostPaths(base).pod_folder(word),
    "volumes": lambda base, word: volumes_of(word, (), HostPaths(base)),
    "volume": lambda base, word: _volume_folder("u", word, HostPaths(base)),
    "restore container": lambda base, word: RestoreContainerMessages(word, HostPaths(base)),
    "served": lambda base, word: IncarnationRecords(base).record_of(word),
    "served by": lambda base, word: IncarnationRecords(base).record_assignment("r", word, cast("Any", None)),
}


@pytest.mark.parametrize("word", [word for word in STRANGE if word])
@pytest.mark.parametrize("place", PATHS)
def test_no_path_is_made_of_them(tmp_path: Path, place: str, word: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "ours").mkdir()
    with pytest.raises(UsageError, match="cannot be a part of a path"):
        PATHS[place](tmp_path / "ours", word)
    assert (tmp_path / "victim").exists()


async def test_nobody_is_doomed_outside(tmp_path: Path) -> None:
    async with PendingKills(tmp_path / "run/doomed", _nothing) as doomed:
        with pytest.raises(UsageError):
            await doomed.add("../../cron", "* * * * * root id")
    assert not (tmp_path / "cron").exists()


async def test_no_capture_is_looked_for_outside(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        await CaptureProcesses(cast("Any", None), tmp_path / "captures").stop("../victim", None)


@pytest.mark.parametrize("volumes", [["../../victim"], "data", [7], None])
async def test_volumes_of_a_manifest_are_names(tmp_path: Path, volumes: Any) -> None:
    pods = cast("Any", Mock())
    returns = PodRestorer(HostPaths(tmp_path), tmp_path, tmp_path, cast("Any", None), pods)
    workload = WorkloadRef("u", "ns", "p", "n")
    with pytest.raises((RestoreError, UsageError)) as caught:
        await returns._preparation.fill_volumes(workload, tmp_path / "images", {"volumes": volumes})
    assert isinstance(caught.value, CedanaSchedError), "so that it is answered in words"


def test_strange_names_beside_the_staged_ones_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".strange").mkdir()
    (tmp_path / "r1").mkdir()
    Staging(tmp_path, "4.2").remove_all_but(())
    assert [path.name for path in tmp_path.iterdir()] == [".strange"]
