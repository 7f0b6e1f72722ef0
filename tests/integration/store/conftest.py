"""Stores to test with: a folder, and a bucket of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.store.location import StorageConfig


@pytest.fixture(params=["posix"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StorageConfig:
    """An empty store of every kind, one after the other."""
    return StorageConfig(path=Path(tmp_path_factory.mktemp("store")))
