"""Removes the snapshots of cancelled checkpoints as soon as the store is writable.

The coordinator ignores such a snapshot as long as it has a record of its checkpoint. A snapshot left in the store would
be found later like any other, and a gang could be restored from different moments. So a removal that fails is recorded
on this node's disk and retried, also by the next agent.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.model import codec
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.identity import Identity
from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.retrying import CHORES, Backoff
from cedana_sched.runtime_handler.atomic_write import is_temporary_name, write_atomically
from cedana_sched.store.snapshot_store import SnapshotStore

log = structlog.get_logger()


class _CancellationNote(msgspec.Struct, frozen=True):
    """Content of one file, which is named after its checkpoint."""

    identity: Identity


class CancelledSnapshots:
    """The pending removals of one agent.

    Args:
        store: the snapshots.
        threads: for calls to the store.
        notes: a folder of this node's own.
    """

    def __init__(self, store: SnapshotStore, threads: StoreThreads, notes: Path) -> None:
        self._store = store
        self._threads = threads
        self._notes = notes
        self._left: dict[str, Identity] = {}
        """By uid of the checkpoint."""
        self._trying: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Resume the removals that an earlier agent has left, until `close`."""
        self._left |= self._read_pending_removals()
        self._try_later()

    async def remove(self, identity: Identity, checkpoint_uid: str) -> bool:
        """Remove the snapshot that this checkpoint has committed, if any; False if that failed and is retried."""
        try:
            await self._threads.run(self.remove_committed, identity, checkpoint_uid)
        except CedanaSchedError as error:
            log.warning("called-off snapshot not removed, trying again", checkpoint=checkpoint_uid, error=str(error))
            self._left[checkpoint_uid] = identity
            await asyncio.to_thread(self._record_pending_removal, checkpoint_uid, identity)
            self._try_later()
            return False
        await self._drop_pending_removal(checkpoint_uid)
        return True

    async def close(self) -> None:
        """Stop retrying; the records stay."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)

    def _try_later(self) -> None:
        if self._left and (self._trying is None or self._trying.done()):
            self._trying = asyncio.create_task(self._retry_pending_removals(), name="removal of called-off snapshots")

    async def _retry_pending_removals(self) -> None:
        backoff = Backoff(CHORES)
        while self._left:
            await asyncio.sleep(backoff.next_pause())
            for uid, identity in tuple(self._left.items()):
                try:
                    await self._threads.background.run(self.remove_committed, identity, uid)
                except CedanaSchedError as error:
                    log.warning("called-off snapshot not removed, trying again", checkpoint=uid, error=str(error))
                except Exception:  # a defect in one of them must not block the others
                    log.exception("called-off snapshot not removed, trying again", checkpoint=uid)
                else:
                    log.info("called-off snapshot removed", checkpoint=uid)
                    await self._drop_pending_removal(uid)

    def remove_committed(self, identity: Identity, checkpoint_uid: str) -> None:
        """Remove the snapshot that this checkpoint has committed, if any; call in a thread.

        Raises:
            CedanaSchedError: the snapshot may still exist.
        """
        if committed := self._store.find_committed(identity, checkpoint_uid):
            self._store.remove(committed.ref)

    async def _drop_pending_removal(self, checkpoint_uid: str) -> None:
        if self._left.pop(checkpoint_uid, None) is not None:
            await asyncio.to_thread(self._record_path(checkpoint_uid).unlink, missing_ok=True)

    def _record_path(self, checkpoint_uid: str) -> Path:
        return self._notes / validate_segment("checkpoint", checkpoint_uid)

    def _record_pending_removal(self, checkpoint_uid: str, identity: Identity) -> None:
        try:
            self._notes.mkdir(parents=True, exist_ok=True)
            write_atomically(self._record_path(checkpoint_uid), codec.encode(_CancellationNote(identity)))
        except OSError as error:  # this agent has it in memory
            log.warning("called-off snapshot not noted", checkpoint=checkpoint_uid, error=str(error))

    def _read_pending_removals(self) -> dict[str, Identity]:
        found = {}
        for path in self._notes.iterdir() if self._notes.is_dir() else ():
            if is_temporary_name(path.name):
                continue
            try:
                found[path.name] = codec.decode(path.read_bytes(), _CancellationNote).identity
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("note of a called-off snapshot cannot be read", path=str(path), error=str(error))
        return found
