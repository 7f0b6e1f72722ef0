"""Lays a snapshot ready on this node: checks that this machine can continue it, fetches and verifies its bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from cedana_sched.agent.facts import compatibility
from cedana_sched.model.errors import IncompatibleError
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.store.snapshots import SnapshotStore


class Staging:
    """The staged snapshots below one directory; each belongs to one restore, by its uid."""

    def __init__(self, directory: Path, criu_version: str) -> None:
        self._directory = directory
        self._criu_version = criu_version

    def stage(self, store: SnapshotStore, restore_uid: str, snapshot: SnapshotRef) -> None:
        """Fetch and verify all of a snapshot. Repeated, it begins again: a half staged one is never used.

        Raises:
            IncompatibleError: this machine cannot continue it; says why.
            StoreError: it cannot be read, or what was read is damaged.
        """
        reader = store.open_snapshot(snapshot)
        here = compatibility(self._criu_version)
        if reasons := reader.manifest.metadata.compatibility.reasons_against(here):
            raise IncompatibleError(
                f"{snapshot} cannot continue on this machine: {'; '.join(reasons)}",
                remedy="run it on a machine like the one it was taken on",
            )
        target = self.images(restore_uid)
        self.remove(restore_uid)
        target.mkdir(parents=True)
        reader.stage(target)

    def images(self, restore_uid: str) -> Path:
        """Where the staged images of a restore lie."""
        return self._directory / restore_uid

    def restore_facts(self, store: SnapshotStore, snapshot: SnapshotRef) -> dict[str, Any]:
        """What the runtime that took the snapshot wants back."""
        return store.open_snapshot(snapshot).manifest.metadata.runtime

    def remove(self, restore_uid: str) -> None:
        """Free the disk again; nothing happens if nothing is staged."""
        shutil.rmtree(self.images(restore_uid), ignore_errors=True)
