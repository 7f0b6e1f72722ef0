"""A container that its kubelet started again in place has lost what the pod was continued from."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.agent.restart_aware_lineage import adjust_lineage_to_run
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage

ORIGIN = SnapshotRef(Identity("bio", "md"), 3)
TOLD = Lineage("restore.w1", ORIGIN)


def pod(*containers: tuple[str, bool]) -> RunningWorkload:
    trees = (RunningContainer(1, Path(f"/sys/fs/cgroup/{name}"), name, is_restored=came) for name, came in containers)
    return RunningWorkload(tuple(trees), is_restored=True)


def test_a_pod_that_came_back_continues_its_snapshot() -> None:
    found = adjust_lineage_to_run(TOLD, pod(("a", True), ("b", True)))
    assert found is not None
    assert (found.continues, found.run.partition("/")[0]) == (ORIGIN, "restore.w1")


def test_a_container_that_was_started_again_continues_nothing_and_is_another_run() -> None:
    before, after = (
        adjust_lineage_to_run(TOLD, pod(("a", True), (name, came))) for name, came in (("b", True), ("b2", False))
    )
    assert before is not None
    assert after is not None
    assert after.continues is None
    assert before.run != after.run


def test_the_same_processes_are_the_same_run() -> None:
    assert adjust_lineage_to_run(TOLD, pod(("a", True), ("b", False))) == adjust_lineage_to_run(
        TOLD, pod(("b", False), ("a", True))
    )


def test_of_an_older_coordinator_nothing_is_known() -> None:
    assert adjust_lineage_to_run(None, pod(("a", False))) is None
