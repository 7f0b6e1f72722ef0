"""Writes of one field of the status of archived Checkpoints, which becomes true once.

The core writes it in the Checkpoints that it tracks, which those that it has archived no longer are.
"""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.patch_preconditions import patch_same
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.kube.watching import Informer, Key
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.objects.checkpoint import CheckpointStatus


class ArchivedCheckpointField:
    """The writes of one field. Run `run` as a task.

    Args:
        api: may patch the status of Checkpoints.
        checkpoints: all of the cluster.
        field: of `CheckpointStatus`.
        what: the field, in logs.
        is_due: whether the field of an archived Checkpoint is to become true, and is not.
    """

    def __init__(
        self,
        api: Api,
        checkpoints: Informer[KnownCheckpoint],
        *,
        field: str,
        what: str,
        is_due: Callable[[KnownCheckpoint], bool],
    ) -> None:
        self._api = api
        self._checkpoints = checkpoints
        self._patch: Object = {"status": {CheckpointStatus.wire_name(field): True}}
        self._is_due = is_due
        self._queue: WorkQueue[Key] = WorkQueue(what, self._write, group_of=lambda key: key[0])
        checkpoints.subscribe(self._on_checkpoint_changed)

    async def run(self) -> None:
        """Write, forever."""
        await self._queue.run()

    def recheck(self, checkpoint: KnownCheckpoint) -> None:
        """Write the field if it is due by now."""
        if self._is_to_be_written(checkpoint):
            self._queue.add((checkpoint.metadata.namespace, checkpoint.metadata.name))

    def _on_checkpoint_changed(self, _: KnownCheckpoint | None, now: KnownCheckpoint | None) -> None:
        if now is not None:
            self.recheck(now)

    def _is_to_be_written(self, one: KnownCheckpoint) -> bool:
        return one.is_archived and not one.is_deleted and self._is_due(one)

    async def _write(self, key: Key) -> None:
        namespace, name = key
        one = self._checkpoints.get(name, namespace)
        if one is not None and self._is_to_be_written(one):
            await patch_same(self._api, CHECKPOINTS, one.metadata, self._patch, subresource="status")
