"""Stores to test with: a folder, and a bucket of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.store.storage_config import StorageConfig
from tests.servers.sealing import new_keys
from tests.servers.swift import swift_storage
from tests.servers.versitygw import Server, s3_server

__all__ = ["s3_server", "swift_storage"]


@pytest.fixture(params=["posix", "posix, sealed", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StorageConfig:
    """An empty store of every kind, one after the other."""
    if request.param == "posix":
        return StorageConfig(path=Path(tmp_path_factory.mktemp("store")))
    if request.param == "posix, sealed":
        keys = new_keys(tmp_path_factory.mktemp("keys"))
        return StorageConfig(path=Path(tmp_path_factory.mktemp("store")), key_file=keys)
    server: Server = request.getfixturevalue("s3_server")
    return server.new_bucket()
