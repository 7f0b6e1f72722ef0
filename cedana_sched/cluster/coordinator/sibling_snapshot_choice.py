"""Chooses the snapshot for a pod that is indistinguishable from its siblings: one that none of them has claimed.

The choice is not persisted: claims are annotations of the pods, and those not visible yet are kept in memory.
"""

from __future__ import annotations

from cedana_sched.adapter.protected_pods import find_identity
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.records import CheckpointStep


class SiblingSnapshotChoice:
    """Tracks the choices of all protected pods."""

    def __init__(self, pods: Informer[Pod], checkpoints: CheckpointsById) -> None:
        self._siblings = Index(_namespace_and_id, pods)
        self._checkpoints = checkpoints
        self._chosen: dict[str, Identity] = {}
        """By uid of pods whose cached object may not show the choice yet."""
        pods.subscribe(self._forget_choice)

    def choose_checkpoint_for(self, pod: Pod) -> KnownCheckpoint | None:
        """Return the checkpoint that this pod restores, stable across calls; None if none is left (cold start)."""
        metadata = pod.metadata
        known = self._checkpoints.objects_of((metadata.namespace, metadata.annotations[names.ID]))
        offers = [one for one in known if not one.is_deleted and one.status.step is not CheckpointStep.FAILED]
        earlier = self._chosen.get(metadata.uid)
        taken = self._taken_identities(pod)
        free = [one for one in offers if one.identity == earlier or (earlier is None and one.identity not in taken)]
        chosen = min(free, key=_committed_first, default=None)
        if chosen is not None:
            self._chosen[metadata.uid] = chosen.identity
        return chosen

    def siblings_of(self, pod: Pod) -> tuple[Pod, ...]:
        """Return the other protected pods of its namespace and id."""
        known = self._siblings.objects_of((pod.metadata.namespace, pod.metadata.annotations.get(names.ID, "")))
        return tuple(one for one in known if one.metadata.uid != pod.metadata.uid)

    def _taken_identities(self, pod: Pod) -> set[Identity]:
        """Return the identities claimed or finished by siblings. A failed or terminating sibling frees its identity."""
        taken = {identity for uid, identity in self._chosen.items() if uid != pod.metadata.uid}
        for sibling in self.siblings_of(pod):
            if sibling.status.phase == "Succeeded":
                keeps = (
                    sibling.metadata.controller_reference == pod.metadata.controller_reference
                )  # a new Job of the id repeats all of the work
            else:
                keeps = sibling.status.phase != "Failed" and sibling.metadata.deletion_timestamp is None
            if keeps and (identity := find_identity(sibling)) is not None:
                taken.add(identity)
        return taken

    def _forget_choice(self, before: Pod | None, now: Pod | None) -> None:
        """Drop the choice of a pod that shows it, or has ended."""
        one = now or before
        if one is None or (chosen := self._chosen.get(one.metadata.uid)) is None:
            return
        is_over = now is None or now.finished or now.metadata.deletion_timestamp is not None
        if is_over or (now is not None and find_identity(now) == chosen and not is_snapshot_choice_pending(now)):
            del self._chosen[one.metadata.uid]


def is_snapshot_choice_pending(pod: Pod) -> bool:
    """Whether the webhook left the choice of the snapshot to the coordinator."""
    annotations = pod.metadata.annotations
    return names.ID in annotations and annotations.get(names.RESTORE_IDENTITY) == names.any_snapshot_restore_identity(
        annotations[names.ID]
    )


def _namespace_and_id(pod: Pod) -> tuple[str, str] | None:
    """Return the index key, namespace and id: pods of one id may restore each other's snapshots."""
    identifier = pod.metadata.annotations.get(names.ID)
    return None if identifier is None else (pod.metadata.namespace, identifier)


def _committed_first(one: KnownCheckpoint) -> tuple[bool, int, int]:
    generation = one.status.snapshot.generation if one.status.snapshot is not None else 0
    return one.status.step is not CheckpointStep.READY, one.identity.index, -generation
