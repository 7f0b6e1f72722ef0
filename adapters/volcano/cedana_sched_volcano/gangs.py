"""Which pods of a PodGroup are evicted together.

Volcano may evict single members of a gang (`minMember` of its PodGroup); the others could not go on without them, and
would only burn their share. So all of them are saved, at one instant, and go.
"""

from __future__ import annotations

from cedana_sched.adapter.evictions import Family, alone
from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.watching import Mirror
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup


class Gangs:
    """Follows PodGroups and the protected pods of each."""

    def __init__(self, groups: Mirror[PodGroup], pods: Mirror[Pod]) -> None:
        self._groups = groups
        self._members = Index(group_of, pods)

    def family_of(self, pod: Pod) -> Family:
        """The pod alone, where the rest of its group goes on without it; else every member that runs."""
        key = group_of(pod)
        group = None if key is None else self._groups.get(key[1], key[0])
        if key is None or group is None or group.spec.min_member <= 1:
            return alone(pod)
        running = [one for one in self._members.of(key) if _runs(one)]
        if len(running) - 1 >= group.spec.min_member:
            return alone(pod)
        members = tuple(sorted(running, key=lambda one: one.metadata.name))
        return Family(group.metadata.uid, members, gang=group.metadata.uid)


def group_of(pod: Pod) -> tuple[str, str] | None:
    """Namespace and name of a pod's PodGroup."""
    name = pod.metadata.annotations.get(GROUP_NAME)
    return None if name is None else (pod.metadata.namespace, name)


def _runs(pod: Pod) -> bool:
    return pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
