"""What a node lacks, or a handler that crashes, starts no container cold whose snapshot lies ready."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from cedana_sched.runtime.plan import Result, forget_lost, write_begun
from tests.integration.runtime.stubbed_runc import StubbedNode


@pytest.fixture
def node(tmp_path: Path) -> StubbedNode:
    return StubbedNode(tmp_path)


@pytest.mark.parametrize("instances", [8, 0])
def test_return_is_continued_with_and_without_inotify(node: StubbedNode, instances: int) -> None:
    node.plan()
    assert node.create_without_inotify(instances) == 0
    assert node.asked() == ["restore"]


def test_container_that_was_lost_waits_for_its_volumes_without_inotify(node: StubbedNode) -> None:
    node.plan()
    write_begun(str(node.pod), "main", Result(restored=True, id="c0"))
    laid = threading.Timer(0.6, forget_lost, (str(node.pod), "main"))
    began = time.monotonic()
    laid.start()
    assert node.create_without_inotify(0) == 0
    laid.join()
    assert node.asked() == ["delete", "restore"]
    assert time.monotonic() - began > 0.6
