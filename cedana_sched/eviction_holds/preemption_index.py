"""Checkpoints and PreemptionHolds by the workload, the pod and the object that they concern."""

from __future__ import annotations

from datetime import datetime, timedelta

from cedana_sched.eviction_holds.pods_being_saved import PodsBeingSaved, PodsBeingSavedByNamespace
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint
from cedana_sched.kube.own_kinds.cached_hold import CappedHold, PreemptionHold
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS


class PreemptionIndex:
    """Indices of Checkpoints and PreemptionHolds, fed by informers.

    Args:
        longest_seconds: cap on each hold, whatever its object contains.
    """

    def __init__(self, longest_seconds: float = LONGEST_DEADLINE_SECONDS) -> None:
        self.longest_seconds = longest_seconds
        self._of_replica: Index[tuple[str, str, int], Checkpoint] = Index(
            lambda one: (one.metadata.namespace, one.spec.identity.id, one.spec.identity.index)
        )
        self._of_id: Index[tuple[str, str], Checkpoint] = Index(
            lambda one: (one.metadata.namespace, one.spec.identity.id)
        )
        self._of_pod: Index[tuple[str, str], Checkpoint] = Index(
            lambda one: (one.metadata.namespace, one.spec.pod_ref.uid)
        )
        self._holds: Index[tuple[str, str], PreemptionHold] = Index(lambda one: (one.metadata.namespace, one.spec.uid))
        self._holds_of_object: Index[tuple[str, str], PreemptionHold] = Index(
            lambda one: (
                (one.metadata.namespace, one.spec.held_object_ref.uid) if one.spec.held_object_ref is not None else None
            )
        )
        self._pods_being_saved = PodsBeingSaved()
        self._pods_being_saved_in = PodsBeingSavedByNamespace()

    def on_checkpoint_change(self, before: Checkpoint | None, now: Checkpoint | None) -> None:
        """Sink of an informer."""
        for index in (self._of_replica, self._of_id, self._of_pod):
            index.on_object_change(before, now)

    def on_hold_change(self, before: PreemptionHold | None, now: PreemptionHold | None) -> None:
        """Sink of an informer."""
        if now is not None:
            now = CappedHold(now.metadata, now.spec, now.status, self.longest_seconds)
        for index in (self._holds, self._holds_of_object):
            index.on_object_change(before, now)
        self._pods_being_saved.on_hold_change(before, now)
        self._pods_being_saved_in.on_hold_change(before, now)

    def checkpoints_of(self, namespace: str, identifier: str, index: int) -> tuple[Checkpoint, ...]:
        return self._of_replica.objects_of((namespace, identifier, index))

    def checkpoints_of_id(self, namespace: str, identifier: str) -> tuple[Checkpoint, ...]:
        return self._of_id.objects_of((namespace, identifier))

    def holds_of(self, namespace: str, uid: str) -> tuple[PreemptionHold, ...]:
        """Return the holds of the object with this uid; they are in its namespace."""
        return self._holds_of_object.objects_of((namespace, uid))

    def holds_of_pod(self, namespace: str, uid: str) -> tuple[PreemptionHold, ...]:
        """Return holds that wait, or have waited, for checkpoints of this pod; all are in its namespace."""
        signals = {checkpoint.spec.hold_uid for checkpoint in self._of_pod.objects_of((namespace, uid))}
        return tuple(hold for signal in signals for hold in self._holds.objects_of((namespace, signal)))

    def is_saving_pods(self, now: datetime, began_before: timedelta) -> bool:
        """Whether pods are being saved or evicted for a preemption that began more than `began_before` ago."""
        since = self._pods_being_saved.oldest_begin(now)
        return since is not None and now - since > began_before

    def was_saving_pods(self, namespace: str, now: datetime, within: timedelta) -> bool:
        """Whether pods of a namespace are being saved or evicted, or the last one was less than `within` ago."""
        ended_at = self._pods_being_saved_in.last_end(namespace, now)
        return ended_at is not None and now - ended_at < within
