"""A failure whose evidence cannot be kept is a failure of its test, and of no other one."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.session import RECORDER, keep_evidence

PROBLEMS: list[BaseException] = [
    subprocess.TimeoutExpired("kubectl", 30),
    OSError("no space left"),
    ClusterError("the node is off", remedy="start it"),
    pytest.fail.Exception("Timeout (>300.0s) from pytest-timeout."),
]


class Recorder:
    def __init__(self, problem: BaseException | None) -> None:
        self._problem = problem

    def keep(self, test: str) -> Path:
        if self._problem is not None:
            raise self._problem
        return Path("build/e2e") / test


def _sections(problem: BaseException | None, *, failed: bool = True) -> list[tuple[str, str]]:
    report = SimpleNamespace(failed=failed, sections=[])
    item = SimpleNamespace(nodeid="test_it", stash={RECORDER: Recorder(problem)})
    keep_evidence(cast("Any", item), cast("Any", report))
    return cast("list[tuple[str, str]]", report.sections)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda one: type(one).__name__)
def test_the_tests_go_on_without_evidence(problem: BaseException) -> None:
    ((_, said),) = _sections(problem)
    assert said == f"not all about it was kept: {problem!r}"


def test_the_report_of_a_failure_names_the_folder() -> None:
    assert _sections(None) == [("cluster", "everything about it is in build/e2e/test_it")]
    assert _sections(None, failed=False) == []
