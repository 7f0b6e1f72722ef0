"""What is kept of a node's Checkpoints while its saves are planned.

Tenants decide how many Checkpoints a node has. So the newest saves of each namespace are kept, of the namespaces that
were saved last, and of each pod of the node its last two snapshots. Nothing is kept from one plan to the next: what is
deleted does not count any more.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from cedana_sched.kube.own_kinds.measured_checkpoint import MeasuredCheckpoint
from cedana_sched_kubernetes.save_rates import MeasuredSave

MEASURABLE_BYTES: Final = 16 << 20
"""A Checkpoint that moves less takes as long as its overhead."""
MOST_OF_NAMESPACE: Final = 10
"""Newest measurable Checkpoints of each namespace that count."""
MOST_NAMESPACES: Final = 100
"""Namespaces that count: those with the newest measurable Checkpoints."""
_MOST_OF_POD: Final = 2


class SaveMeasurements:
    """The Checkpoints of one node that count.

    Args:
        pods: uids of the node's pods whose snapshots are kept.
        most_namespaces: see MOST_NAMESPACES.
    """

    def __init__(self, pods: Collection[str] = (), most_namespaces: int = MOST_NAMESPACES) -> None:
        self._pods = pods
        self._most_namespaces = most_namespaces
        self._saves: dict[str, list[MeasuredSave]] = {}
        """By namespace, those committed first first."""
        self._snapshots: dict[str, list[MeasuredCheckpoint]] = {}
        """By uid of the pod, likewise."""

    @property
    def saves(self) -> Mapping[str, Sequence[MeasuredSave]]:
        """Measurable saves by namespace, those committed first first."""
        return self._saves

    def snapshots_of(self, uid: str) -> Sequence[MeasuredCheckpoint]:
        """Return the last two snapshots of a pod that can be restored, the older one first."""
        return self._snapshots.get(uid, ())

    def add(self, checkpoint: MeasuredCheckpoint) -> None:
        """Count a Checkpoint of the node, in any order."""
        committed_at = checkpoint.committed_at
        if committed_at is None:
            return
        uid = checkpoint.spec.pod_ref.uid
        if uid in self._pods and checkpoint.restorable_generation is not None:
            snapshots = self._snapshots.setdefault(uid, [])
            insort(snapshots, checkpoint, key=lambda one: one.committed_at or 0.0)
            del snapshots[:-_MOST_OF_POD]
        if checkpoint.moved_bytes >= MEASURABLE_BYTES and (seconds := checkpoint.frozen_seconds):
            save = MeasuredSave(committed_at - seconds, committed_at, checkpoint.moved_bytes)
            self._add_save(checkpoint.metadata.namespace, save)

    def _add_save(self, namespace: str, save: MeasuredSave) -> None:
        saves = self._saves.setdefault(namespace, [])
        insort(saves, save, key=lambda one: one.committed_at)
        del saves[:-MOST_OF_NAMESPACE]
        if len(self._saves) > self._most_namespaces:
            del self._saves[min(self._saves, key=lambda name: self._saves[name][-1].committed_at)]
