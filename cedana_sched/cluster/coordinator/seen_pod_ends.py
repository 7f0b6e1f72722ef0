"""What the watch of pods has shown of their ends: which have finished, and when others disappeared.

Only pods that had a node have run anything. The memory is bounded over all namespaces and shared fairly, so that no
tenant's pods displace what is known of another's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cedana_sched.coordinator.core.namespace_shares import NamespaceShares
from cedana_sched.kube.builtin_kinds import DISRUPTED, Pod
from cedana_sched.kube.watching import Informer
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS

POD_GC: Final = "DeletionByPodGC"
"""Reason that Kubernetes' collector of pods writes, together with the phase Failed."""
DEFAULT_GRACE_SECONDS: Final = 30.0
"""The API server's."""
MOST_REMEMBERED: Final = 50_000
"""Pods of all namespaces; of older ones, the latest time by which a kubelet has ended them is known."""
MOST_NAMESPACES: Final = 5_000
"""Of so many namespaces that time is known for each; of others, for all of them."""


def is_lost_with_node(pod: Pod, *, is_node_gone: bool) -> bool:
    """Whether Kubernetes' collector of pods has failed the pod with its node: no kubelet has ended it.

    It writes no condition on a deleted pod of a node that is out of service (`gcTerminating`), and never changes the
    containers' states: a kubelet writes a terminal phase only once all have terminated.
    """
    if _has_collectors_reason(pod):
        return True
    is_failed = pod.metadata.deletion_timestamp is not None and pod.status.phase == "Failed"
    return is_node_gone and is_failed and any(not one.terminated for one in pod.status.container_statuses)


def _has_collectors_reason(pod: Pod) -> bool:
    return any(one.type == DISRUPTED and one.reason == POD_GC for one in pod.status.conditions)


def _has_kubelet_ended(pod: Pod) -> bool:
    """Whether the pod itself shows that its kubelet has ended it, whatever became of the node."""
    containers = pod.status.container_statuses
    is_terminated = bool(containers) and all(one.terminated for one in containers)
    is_ended = pod.status.phase == "Succeeded" or (pod.status.phase == "Failed" and is_terminated)
    return is_ended and not _has_collectors_reason(pod)


class Disappearance(msgspec.Struct, frozen=True):
    """An unfinished pod left the API server at `at` (epoch seconds); its kubelet grants it `grace_seconds`."""

    at: float
    grace_seconds: float

    @property
    def over_at(self) -> float:
        """The end of its grace (epoch seconds)."""
        return self.at + self.grace_seconds


class SeenPodEnds:
    """Ends of pods since this coordinator began to watch.

    Args:
        pods: protected ones of all namespaces.
        is_node_gone: whether no kubelet of the node can end pods.
        now: seconds since the epoch, by the API server.
    """

    def __init__(self, pods: Informer[Pod], is_node_gone: Callable[[str], bool], now: Callable[[], float]) -> None:
        self._is_node_gone = is_node_gone
        self._now = now
        self._began_at = now()
        self._finished: NamespaceShares[bool] = NamespaceShares(MOST_REMEMBERED)
        """Whether Kubernetes' collector of pods may have written the phase, as first seen: it names no reason for a
        deleted pod of a node that is out of service."""
        self._ended_by_themselves: NamespaceShares[None] = NamespaceShares(MOST_REMEMBERED)
        """Those that no component has ended: their program did."""
        self._gone: NamespaceShares[Disappearance] = NamespaceShares(MOST_REMEMBERED)
        self._displaced: dict[str, Disappearance] = {}
        """By namespace: of the disappearances that are not remembered, the one whose grace is over last."""
        self._displaced_elsewhere: Disappearance | None = None
        """Likewise, of all namespaces that are not remembered."""
        self._shown: set[str] = set()
        """Uids of pods that the API server has."""
        for pod in pods:
            self._on_pod_changed(None, pod)
        pods.subscribe(self._on_pod_changed)

    def is_shown(self, uid: str) -> bool:
        """Whether the API server has the pod."""
        return uid in self._shown

    def has_finished(self, namespace: str, uid: str) -> bool:
        """Whether the pod was seen with a terminal phase."""
        return self._finished.has(namespace, uid)

    def has_ended_on_node(self, namespace: str, uid: str) -> bool:
        """Whether the pod was seen finished by its program or its kubelet."""
        return self._ended_by_themselves.has(namespace, uid) or self._finished.get(namespace, uid) is False

    def disappearance_of(self, namespace: str, uid: str, unknown_grace_seconds: float) -> Disappearance:
        """Return when the pod disappeared; the latest possible time if that is not remembered.

        `unknown_grace_seconds`: its grace, if it disappeared while no coordinator watched.
        """
        if (seen := self._gone.get(namespace, uid)) is not None:
            return seen
        unseen = Disappearance(self._began_at, unknown_grace_seconds)
        displaced = self._displaced.get(namespace, self._displaced_elsewhere) or unseen
        return _later_of(unseen, displaced)

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        if now is None:
            if before is not None:
                self._on_pod_gone(before)
            return
        if not now.spec.node_name:
            return
        metadata = now.metadata
        self._shown.add(metadata.uid)
        if now.finished and not self._finished.has(metadata.namespace, metadata.uid):
            may_be_collected = _has_collectors_reason(now) or self._is_node_gone(now.spec.node_name)
            is_unclear = may_be_collected and not _has_kubelet_ended(now)
            self._finished.put(metadata.namespace, metadata.uid, is_unclear)
        if now.ended_by_itself and not any(one.type == DISRUPTED for one in now.status.conditions):
            self._ended_by_themselves.put(metadata.namespace, metadata.uid, None)

    def _on_pod_gone(self, pod: Pod) -> None:
        namespace, uid = pod.metadata.namespace, pod.metadata.uid
        if uid not in self._shown:
            return
        self._shown.discard(uid)
        if self._finished.has(namespace, uid):
            return
        gone = Disappearance(self._now(), grace_of(pod))
        if (displaced := self._gone.put(namespace, uid, gone)) is not None:
            self._note_displaced(displaced.namespace, displaced.value)

    def _note_displaced(self, namespace: str, gone: Disappearance) -> None:
        """Keep the latest end of the namespace; a namespace that is seen first counts also as those not remembered."""
        known = self._displaced.pop(namespace, self._displaced_elsewhere)
        self._displaced[namespace] = gone if known is None else _later_of(gone, known)
        if len(self._displaced) > MOST_NAMESPACES:
            oldest = self._displaced.pop(next(iter(self._displaced)))
            elsewhere = self._displaced_elsewhere
            self._displaced_elsewhere = oldest if elsewhere is None else _later_of(oldest, elsewhere)


def _later_of(one: Disappearance, other: Disappearance) -> Disappearance:
    return max(one, other, key=lambda gone: gone.over_at)


def grace_of(pod: Pod) -> float:
    """Return seconds that a kubelet grants a pod that was deleted by force: those of its spec.

    An author may write any grace; no restore waits for longer than any record lasts.
    """
    grace = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE_SECONDS if grace is None else min(float(grace), LONGEST_RECORD_SECONDS)
