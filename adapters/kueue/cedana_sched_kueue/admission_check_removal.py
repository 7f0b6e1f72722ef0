"""Removes our AdmissionChecks from ClusterQueues: a check without a controller blocks every Workload."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import structlog
import tenacity

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError, ConflictError
from cedana_sched.retrying import AWAITED
from cedana_sched_kueue.admission_check_decisions import is_ours
from cedana_sched_kueue.objects import ADMISSION_CHECKS, CLUSTER_QUEUES, AdmissionCheck

log = structlog.get_logger(__name__)


class _AdmissionChecksStrategy(msgspec.Struct, frozen=True, rename="camel"):
    admission_checks: tuple[Object, ...] | None = None


class _ClusterQueueSpec(msgspec.Struct, frozen=True, rename="camel"):
    admission_checks_strategy: _AdmissionChecksStrategy | None = None


class ClusterQueue(msgspec.Struct, frozen=True):
    """A ClusterQueue, reduced to its admission checks."""

    metadata: Metadata
    spec: _ClusterQueueSpec = _ClusterQueueSpec()


@tenacity.retry(
    wait=AWAITED,
    stop=tenacity.stop_after_attempt(20),
    retry=tenacity.retry_if_exception_type(ConflictError),
    reraise=True,
)
async def withdraw_checks(api: Api) -> None:
    """Remove our checks from all ClusterQueues; others are not changed.

    Raises:
        ApiError: the API server refused.
    """
    try:
        checks, _ = await api.list_all(ADMISSION_CHECKS, into=AdmissionCheck)
        queues, _ = await api.list_all(CLUSTER_QUEUES, into=ClusterQueue)
    except AbsentError:  # Kueue is not installed any more
        return
    ours = {check.metadata.name for check in checks if is_ours(check)}
    for queue in queues:
        if (patch := removal_patch(queue, ours)) is None:
            continue
        try:
            await api.patch(CLUSTER_QUEUES, queue.metadata.name, None, patch)
        except AbsentError:
            continue
        log.info("admission check taken out", cluster_queue=queue.metadata.name)


def removal_patch(queue: ClusterQueue, ours: Collection[str]) -> Object | None:
    """Return the merge patch that removes these checks, with resourceVersion; None if there are none."""
    strategy = queue.spec.admission_checks_strategy
    rules = strategy.admission_checks if strategy is not None else None
    others = [rule for rule in rules or () if rule.get("name") not in ours]
    if not rules or len(others) == len(rules):
        return None
    return {
        "metadata": {"resourceVersion": queue.metadata.resource_version},
        "spec": {"admissionChecksStrategy": {"admissionChecks": others} if others else None},
    }
