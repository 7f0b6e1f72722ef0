"""What the policy and the origin of a snapshot mean for files that have changed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.agent.workload_runtime import SnapshotOrigin, on_change_of
from cedana_sched.cluster.node.restoring.container_results import changed_file_notes, error_of
from cedana_sched.model.errors import FilesChangedError
from cedana_sched.model.policy import OnVolumeChange
from cedana_sched.runtime_handler.file_change_rules import OnChange
from cedana_sched.runtime_handler.plan import (
    COLD,
    FAIL,
    RESTORE,
    ContainerPlan,
    ContainerResult,
    Plan,
    plan_path,
    read_plan,
    read_result,
    write_plan,
    write_result,
)

PLAN = Plan(RESTORE, containers={name: ContainerPlan("/images", "/work") for name in ("main", "side")})


@pytest.mark.parametrize(
    ("ran_on", "is_same_identity", "wanted"),
    [
        (True, True, (OnChange.REWIND, OnChange.COLD, OnChange.FAIL)),
        (True, False, (OnChange.NONE, OnChange.COLD, OnChange.FAIL)),
        (False, True, (OnChange.NONE,) * 3),
        (False, False, (OnChange.NONE,) * 3),
    ],
)
def test_only_what_ran_on_has_files_that_ran_ahead(
    ran_on: bool, is_same_identity: bool, wanted: tuple[OnChange, ...]
) -> None:
    origin = SnapshotOrigin(ran_on, is_same_identity)
    assert tuple(on_change_of(policy, origin) for policy in OnVolumeChange) == wanted


@pytest.mark.parametrize(
    ("on_change", "fallback", "after_change", "after_failure"),
    [
        (OnChange.COLD, FAIL, True, False),
        (OnChange.FAIL, COLD, False, True),
        (OnChange.REWIND, COLD, False, True),
    ],
)
def test_each_failure_has_its_own_policy(
    on_change: OnChange, fallback: str, after_change: bool, after_failure: bool
) -> None:
    plan = Plan(RESTORE, fallback=fallback, on_change=on_change)
    assert plan.may_start_cold(files_changed=True) == after_change
    assert plan.may_start_cold(files_changed=False) == after_failure


def test_plan_and_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_plan(str(tmp_path), PLAN._replace(on_change=OnChange.COLD))
    assert read_plan(str(tmp_path)) == PLAN._replace(on_change=OnChange.COLD)
    result = ContainerResult(restored=False, why="/data/log has grown", notes=("a note",), files_changed=True)
    write_result(str(tmp_path), "main", result)
    assert read_result(str(tmp_path), "main") == result
    assert isinstance(error_of("main", result), FilesChangedError)


def test_a_plan_of_an_earlier_or_later_version_touches_no_file(tmp_path: Path) -> None:
    write_plan(str(tmp_path), PLAN._replace(on_change=OnChange.REWIND))
    path = Path(plan_path(str(tmp_path)))
    path.write_text(path.read_text().replace('"Rewind"', '"Shorten"'))
    plan = read_plan(str(tmp_path))
    assert plan is not None
    assert plan.on_change is OnChange.NONE


def test_the_notes_of_a_pod_are_bounded(tmp_path: Path) -> None:
    for name in PLAN.containers:
        write_result(str(tmp_path), name, ContainerResult(restored=True, notes=tuple("abcdefgh")))
    notes = changed_file_notes(str(tmp_path), PLAN)
    assert notes == (*"abcdefgh", "8 more files have changed")
