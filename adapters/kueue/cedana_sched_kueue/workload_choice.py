"""Selects Kueue's Workload of an object.

A tenant who may write Workloads can set any owner reference. Kueue considers only Workloads whose controller is the
object by kind, name and namespace, whatever its uid, and deletes all but one (`FindMatchingWorkloads` in
pkg/controller/jobframework); it does not delete Workloads that it does not consider the object's.
"""

from __future__ import annotations

from collections.abc import Iterable

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.resources import Resource
from cedana_sched_kueue.managed_kinds import is_of_kind
from cedana_sched_kueue.managed_objects import owner_uid
from cedana_sched_kueue.objects import FINISHED, Workload


def workloads_of_object(
    owner: Metadata, workloads: Iterable[Workload], resource: Resource | None = None
) -> list[Workload]:
    """Return the Workloads that Kueue considers the object's; the first is the authoritative one.

    A finished one was replaced, or its object has ended. A Workload created besides Kueue's is younger.

    Args:
        owner: `name` may be empty if unknown.
        workloads: those of an object of that uid.
        resource: the object's; None if unknown.
    """
    return sorted((one for one in workloads if _is_workload_of(one, owner, resource)), key=_workload_sort_key)


def _is_workload_of(workload: Workload, owner: Metadata, resource: Resource | None) -> bool:
    controller = workload.metadata.controller_reference
    if controller is not None and resource is not None and not is_of_kind(controller, resource):
        return False
    if controller is None or owner_uid(workload) != owner.uid or workload.metadata.namespace != owner.namespace:
        return False
    return owner.name in {"", controller.name}


def _workload_sort_key(workload: Workload) -> tuple[bool, bool, str, str]:
    metadata = workload.metadata
    finished, deleted = workload.find_true_condition(FINISHED) is not None, metadata.deletion_timestamp is not None
    return finished, deleted, metadata.creation_timestamp or "", metadata.name
