"""Checkpoints whose snapshots retention has removed go as well: what `kubectl get cckpt` shows can be continued."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec
import structlog

from cedana_sched.coordinator.tasks import pauses
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError, ApiUnavailableError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.records import Checkpoint, Record

log = structlog.get_logger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class _Snapshot(msgspec.Struct, frozen=True):
    generation: int


class _Status(msgspec.Struct, frozen=True):
    snapshot: _Snapshot | None = None


class _Checkpoint(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: _Status = _Status()


class Removal:
    """Run `run` as a task; `recorded` hears of everything that is saved."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._removed: set[SnapshotRef] = set()
        self._queue: asyncio.Queue[tuple[Identity, frozenset[int]]] = asyncio.Queue()

    def removed(self, refs: Collection[SnapshotRef]) -> None:
        """These are not in the store any more."""
        self._removed.update(refs)
        for identity in {ref.identity for ref in refs}:
            generations = frozenset(ref.generation for ref in refs if ref.identity == identity)
            self._queue.put_nowait((identity, generations))

    def is_removed(self, record: Record) -> bool:
        """Whether the snapshot of a checkpoint that is being forgotten is gone: then its object goes, too."""
        return isinstance(record, Checkpoint) and record.snapshot in self._removed

    def recorded(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """Forget what nobody will ask for again."""
        del records
        self._removed -= {one.snapshot for one in forgotten if isinstance(one, Checkpoint) and one.snapshot}

    async def run(self) -> None:
        """Remove objects, for ever."""
        while True:
            identity, generations = await self._queue.get()
            for pause in pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS):
                try:
                    await self._remove(identity, generations)
                except ApiUnavailableError as error:
                    log.warning("checkpoints not removed, trying again", problem=error.message, pause_seconds=pause)
                    await asyncio.sleep(pause)
                    continue
                except ApiError as error:
                    log.warning("checkpoints not removed", identity=str(identity), problem=error.message)
                break

    async def _remove(self, identity: Identity, generations: frozenset[int]) -> None:
        """Those that nobody remembers; the others go when they are forgotten."""
        labels = f"{names.ID}={identity.id},{names.INDEX}={identity.index},{names.SETTLED}=true"
        query = {"labelSelector": labels}
        found, _ = await self._api.list_all(CHECKPOINTS, identity.namespace, query, into=_Checkpoint)
        for checkpoint in found:
            snapshot = checkpoint.status.snapshot
            if snapshot is not None and snapshot.generation in generations:
                metadata = checkpoint.metadata
                await self._api.delete(CHECKPOINTS, metadata.name, metadata.namespace, uid=metadata.uid)
