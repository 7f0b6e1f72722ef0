"""Stores to test with: a folder, and a bucket of a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.store.location import StorageConfig
from tests.servers.swift import swift_storage
from tests.servers.versitygw import Server, s3_server

__all__ = ["s3_server", "swift_storage"]


@pytest.fixture(params=["posix", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StorageConfig:
    """An empty store of every kind, one after the other."""
    if request.param == "posix":
        return StorageConfig(path=Path(tmp_path_factory.mktemp("store")))
    server: Server = request.getfixturevalue("s3_server")
    return server.new_bucket()
