"""Unheld evictions, usually because no webhook answered when Kueue suspended the object.

The controller of such an object deletes its pods, and only their preStop hooks still wait: the hook of a pod with
`names.CONFIRM_DELETION` waits until the adapter either publishes a signal or marks the pod as not preempted.
"""

from __future__ import annotations

from typing import Final

from cedana_sched.adapter.deletion_answers import is_answer_awaited
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.model.pod_indexing import POD_SET
from cedana_sched.model.preemption import CONFIRMATION_SECONDS
from cedana_sched_kueue.managed_objects import ManagedObject
from cedana_sched_kueue.objects import EVICTED, FINISHED, Workload

register_cached_key(POD_SET)
_WITHOUT_A_HOLD: Final = frozenset({"", "default-scheduler"})


def is_evicted(workload: Workload) -> bool:
    """Whether Kueue evicts its object; Kueue sets the condition before it suspends the object."""
    return workload.find_true_condition(EVICTED) is not None and workload.find_true_condition(FINISHED) is None


def is_suspended(target: ManagedObject | None) -> bool:
    """Whether the object's controller deletes its pods."""
    return target is not None and target.suspended and not target.ended


def awaits_confirmation(pod: Pod) -> bool:
    """Whether the pod is terminating and waits for this adapter, not for that of the scheduler that bound it."""
    if not is_answer_awaited(pod) or POD_SET not in pod.metadata.labels:
        return False
    return not (pod.is_evicted and pod.spec.scheduler_name not in _WITHOUT_A_HOLD)


def is_prestop_waiting(pod: Pod, now: float) -> bool:
    """Whether its preStop hook waits at this time (seconds since the epoch), so that its processes still run."""
    began_at = pod.metadata.deletion_began_at
    if began_at is None or not awaits_confirmation(pod) or pod.status.phase != "Running":
        return False
    return now - began_at < CONFIRMATION_SECONDS  # a program that already terminates is not worth saving
