"""Keys for tests, and stores that are sealed with them."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.store.backend import Backend
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.sealing import key_file
from cedana_sched.store.sealing.seal_selection import SealSelection
from cedana_sched.store.snapshot_store import SnapshotStore


def new_keys(folder: Path, name: str = "keys") -> Path:
    """A file with one key."""
    path = folder / name
    key_file.create(path)
    return path


def sealed_store(
    place: Path | Backend,
    keys: Path | None,
    *,
    accepts_unsealed: bool = False,
    writes_unsealed: bool = False,
    cache_directory: Path | None = None,
) -> SnapshotStore:
    """The store there, as a process sees it that has these keys; None for one that has none."""
    backend = PosixBackend(place) if isinstance(place, Path) else place
    provider = key_file.KeyFile(keys) if keys is not None else None
    seals = SealSelection(backend, provider, accepts_unsealed=accepts_unsealed, writes_unsealed=writes_unsealed)
    return SnapshotStore(backend, seals=seals, cache_directory=cache_directory)
