"""Stages a snapshot on this node: checks that this machine can restore it, fetches and verifies its bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from cedana_sched.agent.facts import compatibility
from cedana_sched.agent.room import Reserve, Room
from cedana_sched.model.errors import IncompatibleError, NewerFormatError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.segments import is_segment, segment
from cedana_sched.runtime.whole import is_hidden, name_of, write_whole
from cedana_sched.store.reader import Progress
from cedana_sched.store.snapshots import SnapshotStore


class Staging:
    """The staged snapshots below one directory; each belongs to one restore, by its uid.

    UID/        the images
    UID.facts   the runtime's restore facts, as JSON; written last: with it the snapshot is complete
    """

    def __init__(
        self,
        directory: Path,
        criu_version: str,
        reserve: Callable[[], Reserve] = Reserve,
        namespace_share: float = 1.0,
    ) -> None:
        """Stage below `directory`.

        Args:
            directory: created if missing.
            criu_version: of the CRIU that restores them.
            reserve: space to keep free on the filesystem; see `Room`.
            namespace_share: see `Room`.
        """
        self._directory = directory
        self._room = Room(directory, reserve, namespace_share=namespace_share)
        self._criu_version = criu_version

    def stage(
        self,
        store: SnapshotStore,
        restore_uid: str,
        snapshot: SnapshotRef,
        progress: Progress | None = None,
        manifest: str = "",
    ) -> None:
        """Fetch and verify all of a snapshot. A repeated call starts over: an incomplete one is never used.

        Args:
            store: has the snapshot.
            restore_uid: the Restore to stage for.
            snapshot: the snapshot to stage.
            progress: called with the fetched and the total bytes, from any thread.
            manifest: digest of the snapshot's manifest when it was committed; empty: unknown.

        Raises:
            IncompatibleError: this machine cannot restore it; names the reason.
            NewerFormatError: this machine needs an upgrade first, of cedana-sched or of its CRIU.
            NoRoomError: it would fill this machine's disk; nothing was written.
            StoreError: it cannot be read, or is damaged.
        """
        reader = store.open_snapshot(snapshot, manifest)
        here, taken = compatibility(self._criu_version), reader.manifest.metadata.compatibility
        if reasons := taken.reasons_against(here):
            raise IncompatibleError(
                f"{snapshot} cannot continue on this machine: {'; '.join(reasons)}",
                remedy="run it on a machine like the one it was taken on",
            )
        if taken.needs_newer_criu_than(here):
            raise NewerFormatError(
                f"{snapshot} was taken with CRIU {taken.criu}, which is newer than this machine's {here.criu}",
                remedy="upgrade cedana-sched here, which brings CRIU along: in a cluster this node's agent",
            )
        target = self.images(restore_uid)
        self.remove(restore_uid)
        with self._room.taken(restore_uid, reader.manifest, progress) as taking:
            target.mkdir(parents=True)
            reader.stage(target, taking)
        write_whole(self._facts(restore_uid), msgspec.json.encode(reader.manifest.metadata.runtime))

    def images(self, restore_uid: str) -> Path:
        """Return the folder of a Restore's staged images."""
        return self._directory / segment("restore", restore_uid)

    def restore_facts(self, restore_uid: str) -> dict[str, Any] | None:
        """Return the restore facts of the runtime that took the snapshot; None if it is not staged completely."""
        try:
            content = self._facts(restore_uid).read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(content, type=dict[str, Any]) if content else None

    def remove(self, restore_uid: str) -> None:
        """Remove a staged snapshot; idempotent."""
        self._facts(restore_uid).unlink(missing_ok=True)
        shutil.rmtree(self.images(restore_uid), ignore_errors=True)
        self._room.freed(restore_uid)

    def remove_all_but(self, restore_uids: Collection[str]) -> None:
        """Remove what a killed agent has staged for restores that no longer exist."""
        if self._directory.exists():
            for path in self._directory.iterdir():
                uid = name_of(path.name).removesuffix(".facts")
                if uid not in restore_uids:
                    if is_segment(uid):
                        self.remove(uid)
                    if is_hidden(path.name) and not path.is_dir():
                        path.unlink(missing_ok=True)

    def _facts(self, restore_uid: str) -> Path:
        return self._directory / f"{segment('restore', restore_uid)}.facts"
