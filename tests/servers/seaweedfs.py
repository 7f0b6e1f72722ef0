"""A real S3 server with a Security Token Service: SeaweedFS over a folder, built from its Go module, on loopback only.

It enforces session policies (its `weed/iam/integration/iam_manager.go`, `IsActionAllowed`), which versitygw has not.
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import minio
import pytest
import tenacity
import urllib3

from cedana_sched.store.storage_config import S3Location
from tests.cluster.binaries.build import ensure_blocking
from tests.servers.versitygw import free_port

ACCESS_KEY, SECRET_KEY = "owner-of-all", "a-secret-for-tests"
ROLE = "arn:aws:iam::role/Snapshots"
QUIET = ("-master.telemetry=false", "-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0")
"""Only S3, and no word to anybody."""
_PARTS = ("master.port", "volume.port", "filer.port", "s3.port")


def iam() -> dict[str, Any]:
    """One identity that may do everything, and a role of the same rights, which it may assume."""
    allow = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    trust = {"Effect": "Allow", "Principal": "*", "Action": ["sts:AssumeRole"]}
    return {
        "identities": [
            {
                "name": "owner",
                "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ],
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "seaweedfs-sts",
            "signingKey": base64.b64encode(b"a key with which tests sign sessions").decode(),
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "All", "document": {"Version": "2012-10-17", "Statement": [allow]}}],
        "roles": [
            {
                "roleName": "Snapshots",
                "roleArn": ROLE,
                "attachedPolicies": ["All"],
                "trustPolicy": {"Version": "2012-10-17", "Statement": [trust]},
            }
        ],
    }


class Server:
    """One running server."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {part: free_port() for part in (*_PARTS, *(f"{part}.grpc" for part in _PARTS))}
        self._program = ensure_blocking("seaweedfs").program("weed")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    def start(self) -> None:
        (self._folder / "iam.json").write_text(json.dumps(iam()))
        (self._folder / "security.toml").write_text("")
        (self._folder / "data").mkdir(exist_ok=True)
        ports = [f"-{part}={port}" for part, port in self._ports.items()]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "mini", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports, *self._options()],
                cwd=self._folder,
                env={"HOME": str(self._folder), "PATH": "/usr/bin:/bin"},
                stdout=log,
                stderr=log,
            )
        self._wait_until_it_answers()

    def _options(self) -> list[str]:
        """Nothing outside of the folder."""
        return [
            f"-dir={self._folder}/data",
            f"-s3.config={self._folder}/iam.json",
            f"-s3.iam.config={self._folder}/iam.json",
            f"-s3.localSocket={self._folder}/s3.sock",
            f"-filer.localSocket={self._folder}/filer.sock",
            *QUIET,
        ]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def location(self, bucket: str, prefix: str, **more: Any) -> S3Location:
        """Of a prefix, with the keys of all unless others are given."""
        keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
        values = {"endpoint": self.endpoint, "bucket": bucket, "prefix": prefix, "allow_http": True}
        return S3Location.model_validate({**values, **keys, **more})

    def owner(self) -> minio.Minio:
        """A client that may do everything."""
        host = self.endpoint.removeprefix("http://")
        return minio.Minio(host, access_key=ACCESS_KEY, secret_key=SECRET_KEY, secure=False, region="us-east-1")

    @tenacity.retry(
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(90),
        retry=tenacity.retry_if_exception_type((OSError, urllib3.exceptions.HTTPError, minio.error.MinioException)),
    )
    def _wait_until_it_answers(self) -> None:
        if not self.owner().bucket_exists("ready"):
            self.owner().make_bucket("ready")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server over a folder, killed at the end."""
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def sts_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that all tests of a session share."""
    with running(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server
