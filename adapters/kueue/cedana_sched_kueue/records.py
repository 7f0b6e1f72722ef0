"""Which Workload is Kueue's record of a Job.

Whoever may write Workloads in his namespace can have one name any owner. Kueue counts those alone whose controller is
the Job by kind, name and namespace, whatever its uid, and removes all but one (`FindMatchingWorkloads` in
pkg/controller/jobframework); what it does not see as the Job's, nobody removes.
"""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import JOBS
from cedana_sched_kueue.objects import FINISHED, Workload


def uid_of_job(workload: Workload) -> str | None:
    """Of the Job that it is a record of; None: of none."""
    owner = workload.metadata.owner
    if owner is None or (owner.api_version, owner.kind) != (JOBS.group_version, JOBS.kind):
        return None
    return owner.uid


def records_of(job: Metadata, workloads: Iterable[Workload]) -> list[Workload]:
    """Those that Kueue counts, whichever has changed last; the first is the one by which it goes.

    A finished one has been replaced, or its Job has ended. What is made beside Kueue's is younger.

    Args:
        job: `name` may be empty where it is not known.
        workloads: those of a Job of that uid.
    """
    return sorted((one for one in workloads if _belongs(one, job)), key=_rank)


def _belongs(workload: Workload, job: Metadata) -> bool:
    owner = workload.metadata.owner
    if owner is None or uid_of_job(workload) != job.uid or workload.metadata.namespace != job.namespace:
        return False
    return job.name in {"", owner.name}


def _rank(workload: Workload) -> tuple[bool, bool, str, str]:
    metadata = workload.metadata
    finished, deleted = workload.condition(FINISHED) is not None, metadata.deletion_timestamp is not None
    return finished, deleted, metadata.creation_timestamp or "", metadata.name
