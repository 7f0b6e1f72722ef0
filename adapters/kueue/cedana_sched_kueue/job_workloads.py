"""Selects Kueue's Workload of a Job; index keys: an object's own uid, its controller's, its Job's.

A tenant who may write Workloads can set any owner reference. Kueue considers only Workloads whose controller is the Job
by kind, name and namespace, whatever its uid, and deletes all but one (`FindMatchingWorkloads` in
pkg/controller/jobframework); it does not delete Workloads that it does not consider the Job's.
"""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import JOBS
from cedana_sched.kube.watching import HasMetadata
from cedana_sched_kueue.objects import FINISHED, Workload


def own_uid(one: HasMetadata) -> str:
    return one.metadata.uid


def owner_uid(one: HasMetadata) -> str | None:
    """Return the uid of its controller; None if it has none."""
    owner = one.metadata.controller_reference
    return owner.uid if owner else None


def owning_job_uid(workload: Workload) -> str | None:
    """Return the uid of the Workload's Job; None if its controller is no Job."""
    owner = workload.metadata.controller_reference
    if owner is None or (owner.api_version, owner.kind) != (JOBS.group_version, JOBS.kind):
        return None
    return owner.uid


def workloads_of_job(job: Metadata, workloads: Iterable[Workload]) -> list[Workload]:
    """Return the Workloads that Kueue considers the Job's; the first is the authoritative one.

    A finished one was replaced, or its Job has ended. A Workload created besides Kueue's is younger.

    Args:
        job: `name` may be empty if unknown.
        workloads: those of a Job of that uid.
    """
    return sorted((one for one in workloads if _is_workload_of(one, job)), key=_workload_sort_key)


def _is_workload_of(workload: Workload, job: Metadata) -> bool:
    owner = workload.metadata.controller_reference
    if owner is None or owning_job_uid(workload) != job.uid or workload.metadata.namespace != job.namespace:
        return False
    return job.name in {"", owner.name}


def _workload_sort_key(workload: Workload) -> tuple[bool, bool, str, str]:
    metadata = workload.metadata
    finished, deleted = workload.find_true_condition(FINISHED) is not None, metadata.deletion_timestamp is not None
    return finished, deleted, metadata.creation_timestamp or "", metadata.name
