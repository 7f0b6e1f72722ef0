"""A real S3 server for tests: versitygw over a folder, built from its Go module, on loopback only.

Any room may use it: `from tests.servers.versitygw import s3_server` in its conftest.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from cedana_sched.store.storage_config import S3Location, StorageConfig
from tests.cluster.binaries.build import ensure_blocking

ACCESS_KEY, SECRET_KEY = "tester", "a-secret-for-tests"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One running server; `kill` and `start` again to see what its clients make of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._program = ensure_blocking("versitygw").program("versitygw")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "objects").mkdir(exist_ok=True)
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", self.folder / "objects"],
                env={"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
                stdout=log,
                stderr=log,
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def new_bucket(self) -> StorageConfig:
        """An empty bucket, and how to reach it."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        (self.folder / "objects" / name).mkdir()
        return self.config(name)

    def config(self, bucket: str, *, secret_key: str = SECRET_KEY) -> StorageConfig:
        return StorageConfig(
            s3=S3Location.model_validate(
                {
                    "endpoint": f"http://127.0.0.1:{self.port}",
                    "bucket": bucket,
                    "prefix": "some/prefix",
                    "access_key": ACCESS_KEY,
                    "secret_key": secret_key,
                    "allow_http": True,
                }
            )
        )

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.05),
        stop=tenacity.stop_after_delay(20),
        retry=tenacity.retry_if_exception_type(OSError),
    )
    def _wait_until_it_answers(self) -> None:
        socket.create_connection(("127.0.0.1", self.port), timeout=1).close()


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server over a folder, killed at the end."""
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests of a session share; each takes a bucket of its own with `new_bucket`."""
    with running(tmp_path_factory.mktemp("versitygw")) as server:
        yield server
