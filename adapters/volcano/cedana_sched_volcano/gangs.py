"""Pods of a PodGroup that are evicted together.

Volcano may evict single members of a gang (`minMember` of its PodGroup); the others could not continue without them,
and would only waste their share. So all of them are saved at one instant, and evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from cedana_sched.adapter.marked_evictions import Family, single_pod_family
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.index import Index
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup


class GangResolver:
    """Resolves the gangs of protected pods.

    Args:
        groups: all PodGroups.
        pods: protected ones.
        now: the time of day.
    """

    def __init__(
        self,
        groups: Informer[PodGroup],
        pods: Informer[Pod],
        now: Callable[[], datetime] = SERVER_TIME.now,
    ) -> None:
        self._groups = groups
        self._members = Index(pod_group_key_of, pods)
        self._now = now

    def family_evicted_with(self, pod: Pod) -> Family:
        """Return the pod alone if the rest of its group can run without it; else all running members but the spare.

        Spare members are evicted alone, in the order of their marks. So the result is stable over time and members.
        """
        key = pod_group_key_of(pod)
        group = None if key is None else self._groups.get(key[1], key[0])
        if key is None or group is None or group.spec.min_member <= 1:
            return single_pod_family(pod)
        members = self._members.objects_of(key)
        running = [one for one in members if _is_running(one)]
        spare = max(_count_running_members(group, members), len(running)) - group.spec.min_member
        go_alone = self._marked_uids_in_order(running, pod)[: max(spare, 0)]
        if pod.metadata.uid in go_alone:
            return single_pod_family(pod)
        rest = (one for one in running if one.metadata.uid not in go_alone)
        return Family(
            group.metadata.uid, tuple(sorted(rest, key=lambda one: one.metadata.name)), gang=group.metadata.uid
        )

    def gang_of(self, pod: Pod) -> str | None:
        """Return the uid of the pod's PodGroup; None if its members can run without each other."""
        key = pod_group_key_of(pod)
        group = None if key is None else self._groups.get(key[1], key[0])
        return group.metadata.uid if group is not None and group.spec.min_member > 1 else None

    def _marked_uids_in_order(self, running: Iterable[Pod], last: Pod) -> list[str]:
        """Return the uids of marked members in the order of their marks; `last` is last if unmarked."""
        now, since = self._now(), {last.metadata.uid: ""}
        for pod in running:
            if (mark := read_mark(pod.metadata.annotations)) is not None and mark.is_fresh(now):
                since[pod.metadata.uid] = mark.since
        return sorted(since, key=lambda uid: (not since[uid], since[uid], uid))


def pod_group_key_of(pod: Pod) -> tuple[str, str] | None:
    """Return namespace and name of a pod's PodGroup."""
    name = pod.metadata.annotations.get(GROUP_NAME)
    return None if name is None else (pod.metadata.namespace, name)


def _is_running(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def _count_running_members(group: PodGroup, protected: Iterable[Pod]) -> int:
    """Return the scheduler's count of running members: with unprotected pods, and up to one cycle stale."""
    return group.status.running - sum(pod.metadata.deletion_timestamp is not None for pod in protected)
