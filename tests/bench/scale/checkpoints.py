"""Checkpoints that nobody acts on, as large as the coordinator's."""

from __future__ import annotations

import time

from cedana_sched.cluster.coordinator.record_objects import to_object
from cedana_sched.kube.client import Object
from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import AfterCommit, WorkloadRef
from cedana_sched.model.records import Checkpoint, CheckpointStep


def checkpoint(uid: str, adapter: str, pod: WorkloadRef) -> Object:
    """Of that pod, in its namespace; nothing keeps it from being deleted."""
    now = time.time()
    record = Checkpoint(
        uid=uid, signal_uid="signal", adapter=adapter, workload=pod, identity=Identity(pod.namespace, "md"),
        policy=CheckpointPolicy(), gang=None, after_commit=AfterCommit.STOP, reason="measured",
        step=CheckpointStep.FREEZING,
        created_at=now, deadline=now + 60,
    )  # fmt: skip
    body = to_object(record, pod.namespace)
    del body["metadata"]["finalizers"]
    return body
