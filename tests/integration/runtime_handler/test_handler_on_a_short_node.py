"""What a node lacks, or a handler that crashes, starts no container cold whose snapshot lies ready."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from cedana_sched.runtime_handler.plan import (
    COLD,
    FAIL,
    FORGO,
    RESTORE,
    ContainerResult,
    read_create_record,
    unmark_lost,
    write_create_record,
    write_result,
)
from tests.integration.runtime_handler.stubbed_runc import StubbedNode


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
    write_create_record(str(node.pod), "main", ContainerResult(restored=True, id="c0"))
    lost, waited = node.pod / "results/main.json.lost", []

    def lay() -> None:
        while not lost.exists():
            time.sleep(0.02)
        time.sleep(0.6)
        waited.append(node.asked())
        unmark_lost(str(node.pod), "main")

    laying = threading.Thread(target=lay, daemon=True)
    laying.start()
    assert node.create_without_inotify(0) == 0
    laying.join()
    assert waited == [["delete"]]
    assert node.asked() == ["delete", "restore"]


_NO_MEMORY = 'case "$*" in *handler*) [ $(wc -l <{count}) -ge {times} ] || {{ echo >>{count}; kill -9 $$; }} ;; esac'


def _crashing(node: StubbedNode, times: int) -> Path:
    """The interpreter is killed the first so many times, as by the kernel where memory is short."""
    count = node.folder / "crashes"
    count.touch()
    node.set_python(f"{_NO_MEMORY.format(count=count, times=times)}\n{node.interpreter}")
    return count


def test_handler_that_is_killed_is_started_again(node: StubbedNode) -> None:
    node.plan()
    _crashing(node, 2)
    assert node.call("create") == 0
    assert node.asked() == ["restore"]


def test_handler_that_always_crashes_leaves_it_to_the_policy(node: StubbedNode) -> None:
    node.plan()
    _crashing(node, 99)
    assert node.call("create") == 0
    assert node.asked() == ["delete", "create"]
    assert (result := node.result()) is not None
    assert (result.restored, result.cold) == (False, True)


def test_handler_that_crashes_begins_nothing_beside_what_has_come_back(node: StubbedNode) -> None:
    node.plan(RESTORE, "main", "beside")
    write_result(str(node.pod), "beside", ContainerResult(restored=True, id="c0"))
    _crashing(node, 99)
    assert node.call("create") == 1
    assert node.asked() == []
    assert node.result() is None, "the next call may do better"
    assert "the runtime handler ended with status 137" in node.log.read_text()


def test_handler_that_crashes_begins_nothing_that_may_have_come_back(node: StubbedNode) -> None:
    node.plan()
    write_create_record(str(node.pod), "main", ContainerResult(restored=False, id="c1"))
    _crashing(node, 99)
    assert node.call("create") == 1
    assert node.asked() == ["delete"]
    assert node.result() is None


@pytest.mark.parametrize("decision", [FAIL, FORGO])
def test_handler_that_crashes_begins_nothing_that_was_decided_against(node: StubbedNode, decision: str) -> None:
    node.plan(decision)
    _crashing(node, 99)
    assert node.call("create") == 1
    assert node.asked() == []


def test_handler_that_crashes_decides_nothing_for_another_sandbox(node: StubbedNode) -> None:
    node.plan(COLD, sandbox="another")
    _crashing(node, 99)
    assert node.call("create") == 1
    assert node.asked() == []


@pytest.mark.parametrize(("name", "kind"), [("main", "sandbox"), ("cedana-restore", "container")])
def test_handler_that_crashes_keeps_no_pod_from_deciding(node: StubbedNode, name: str, kind: str) -> None:
    node.make(name, kind)
    node.plan(FAIL, sandbox="another")
    _crashing(node, 99)
    assert node.call("create") == 0
    assert node.asked() == ["create"]


@pytest.mark.parametrize("decision", [RESTORE, COLD])
def test_start_publishes_what_has_come_back(node: StubbedNode, decision: str) -> None:
    node.plan()
    assert node.call("create") == 0
    node.plan(decision)
    assert node.call("start") == 0
    assert (result := node.result()) is not None
    assert result.restored
    assert node.asked() == ["restore"]


@pytest.mark.parametrize("decision", [FAIL, FORGO])
def test_start_ends_what_was_decided_against_meanwhile(node: StubbedNode, decision: str) -> None:
    node.plan()
    assert node.call("create") == 0
    node.plan(decision, why="not restored within 600 s")
    assert node.call("start") == 1
    assert node.asked() == ["restore", "delete"]
    assert node.result() is None
    assert read_create_record(str(node.pod), "main") is None, "it would count as come back"
    assert "decided meanwhile" in node.log.read_text()
