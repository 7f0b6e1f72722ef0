"""What the watch of pods has shown of their ends: which have finished, and when others disappeared.

Only pods that had a node have run anything. The memory is bounded per namespace, so that no tenant's pods displace what
is known of another's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from cedana_sched.kube.builtin_kinds import DISRUPTED, Pod
from cedana_sched.kube.watching import Informer
from cedana_sched.model.policy import LONGEST_RECORD_SECONDS

T = TypeVar("T")

DEFAULT_GRACE_SECONDS: Final = 30.0
"""The API server's."""
MOST_REMEMBERED: Final = 5_000
"""Pods of one namespace; of older ones, the latest time by which a kubelet has ended them is known."""


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
        now: seconds since the epoch, by the API server.
    """

    def __init__(self, pods: Informer[Pod], now: Callable[[], float]) -> None:
        self._now = now
        self._began_at = now()
        self._finished: _PerNamespace[None] = _PerNamespace()
        self._ended_by_themselves: _PerNamespace[None] = _PerNamespace()
        """Those that no component has ended: their program did."""
        self._gone: _PerNamespace[Disappearance] = _PerNamespace()
        self._displaced: dict[str, Disappearance] = {}
        """By namespace: of the disappearances that are not remembered, the one whose grace is over last."""
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

    def has_ended_by_itself(self, namespace: str, uid: str) -> bool:
        """Whether the pod was seen finished although no component had ended it."""
        return self._ended_by_themselves.has(namespace, uid)

    def disappearance_of(self, namespace: str, uid: str, unknown_grace_seconds: float) -> Disappearance:
        """Return when the pod disappeared; the latest possible time if that is not remembered.

        `unknown_grace_seconds`: its grace, if it disappeared while no coordinator watched.
        """
        if (seen := self._gone.get(namespace, uid)) is not None:
            return seen
        unseen = Disappearance(self._began_at, unknown_grace_seconds)
        return max(unseen, self._displaced.get(namespace, unseen), key=lambda one: one.over_at)

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        if now is None:
            if before is not None:
                self._on_pod_gone(before)
            return
        if not now.spec.node_name:
            return
        metadata = now.metadata
        self._shown.add(metadata.uid)
        if now.finished:
            self._finished.put(metadata.namespace, metadata.uid, None)
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
            last = max(displaced, self._displaced.get(namespace, displaced), key=lambda one: one.over_at)
            self._displaced[namespace] = last


def grace_of(pod: Pod) -> float:
    """Return seconds that a kubelet grants a pod that was deleted by force: those of its spec.

    An author may write any grace; no restore waits for longer than any record lasts.
    """
    grace = pod.spec.termination_grace_period_seconds
    return DEFAULT_GRACE_SECONDS if grace is None else min(float(grace), LONGEST_RECORD_SECONDS)


class _PerNamespace(Generic[T]):
    """Values by uid, the latest ones of each namespace."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, T]] = {}

    def has(self, namespace: str, uid: str) -> bool:
        return uid in self._of.get(namespace, {})

    def get(self, namespace: str, uid: str) -> T | None:
        return self._of.get(namespace, {}).get(uid)

    def put(self, namespace: str, uid: str, value: T) -> T | None:
        """Remember the value; return the one that it displaces."""
        known = self._of.setdefault(namespace, {})
        known[uid] = value
        return known.pop(next(iter(known))) if len(known) > MOST_REMEMBERED else None
