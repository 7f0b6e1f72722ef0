"""Pods of Volcano's jobs: each task numbers its own."""

from __future__ import annotations

from typing import Any

from cedana_sched.model.objects import names
from cedana_sched_webhooks.identity import Replica, is_numbered, replica_of
from tests.unit.webhooks.admission_builders import pod


def of_task(task: str, index: str, **fields: Any) -> Any:
    return pod("sim", labels={"volcano.sh/task-spec": task, "volcano.sh/task-index": index}, **fields)


def test_task_and_index_tell_the_pods_of_a_job_apart() -> None:
    assert replica_of(of_task("worker", "3")) == Replica("sim-worker", 3)
    assert replica_of(of_task("launcher", "3")) == Replica("sim-launcher", 3)
    assert is_numbered(of_task("worker", "3"))


def test_asked_again_it_is_the_same_one() -> None:
    body = pod(
        None,
        labels={"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "3"},
        annotations={names.ID: "sim"},
    )
    assert replica_of(body) == Replica("sim-worker", 3)
    body["metadata"]["annotations"][names.ID] = "sim-worker"
    body["metadata"]["labels"][names.PROTECTED] = "true"
    assert replica_of(body) == Replica("sim-worker", 3)
