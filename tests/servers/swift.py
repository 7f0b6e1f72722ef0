"""A second real S3 server for tests: OpenStack Swift with its S3 layer, four processes on loopback.

It is nobody's copy of the first one: other limits, other error texts, other answers to the same requests. What the
store finds out by trying is tried on both.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity
from minio import Minio

from cedana_sched.store.storage_config import S3Location, StorageConfig
from tests.servers.versitygw import free_port

ACCESS_KEY, SECRET_KEY = "test:tester", "secret"
REQUIREMENTS = Path(__file__).with_name("swift-requirements.txt")
CACHE = Path.home() / ".cache" / "cedana-sched" / "swift"
_LIBRARY = "liberasurecode1"

_STORAGE = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
user = root
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
recon_cache_path = {folder}/cache
"""
_PROXY = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {folder}
user = root
[pipeline:main]
pipeline = catch_errors cache s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = secret .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""
_COMMON = """
[swift-hash]
swift_hash_path_prefix = tests
swift_hash_path_suffix = tests
[storage-policy:0]
name = only
default = yes
"""


def install() -> Path:
    """The folder of Swift's programs, in an environment of its own; made once for each state of its requirements."""
    if subprocess.run(["dpkg", "-s", _LIBRARY], capture_output=True, check=False).returncode:
        subprocess.run(["apt-get", "install", "-y", "-qq", _LIBRARY], check=True, stdout=subprocess.DEVNULL)
    environment = CACHE / hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    marker = environment / ".complete"
    if not marker.exists():
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        command = [str(environment / "bin" / "pip"), "install", "-q", "--require-hashes", "-r", str(REQUIREMENTS)]
        subprocess.run(command, check=True)
        marker.touch()
    return environment / "bin"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[StorageConfig]:
    """A server with one bucket."""
    programs = install()
    (folder / "devices" / "only").mkdir(parents=True)
    (folder / "cache").mkdir()
    (folder / "swift.conf").write_text(_COMMON)
    ports = {kind: free_port() for kind in ("account", "container", "object", "proxy")}
    with contextlib.ExitStack() as stack:
        for kind, port in ports.items():
            if kind != "proxy":
                _make_ring(programs, folder, kind, port)
            template = _PROXY if kind == "proxy" else _STORAGE
            config = folder / f"{kind}.conf"
            config.write_text(template.format(kind=kind, port=port, folder=folder))
            stack.enter_context(_process(programs / f"swift-{kind}-server", config))
        for port in ports.values():
            _wait_for(port)
        yield _make_bucket(ports["proxy"])


def _make_ring(programs: Path, folder: Path, kind: str, port: int) -> None:
    builder = folder / f"{kind}.builder"
    steps = (["create", "4", "1", "1"], ["add", f"r1z1-127.0.0.1:{port}/only", "1"], ["rebalance"])
    for step in steps:
        subprocess.run(
            [str(programs / "swift-ring-builder"), str(builder), *step], check=True, stdout=subprocess.DEVNULL
        )


@contextlib.contextmanager
def _process(program: Path, config: Path) -> Iterator[None]:
    with config.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen([program, config], stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@tenacity.retry(
    wait=tenacity.wait_fixed(0.05), stop=tenacity.stop_after_delay(30), retry=tenacity.retry_if_exception_type(OSError)
)
def _wait_for(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=1).close()


def _make_bucket(port: int) -> StorageConfig:
    client = Minio(f"127.0.0.1:{port}", access_key=ACCESS_KEY, secret_key=SECRET_KEY, secure=False, region="us-east-1")
    client.make_bucket("snapshots")
    return StorageConfig(
        s3=S3Location.model_validate(
            {
                "endpoint": f"http://127.0.0.1:{port}",
                "bucket": "snapshots",
                "prefix": "cluster-1",
                "access_key": ACCESS_KEY,
                "secret_key": SECRET_KEY,
                "allow_http": True,
            }
        )
    )


@pytest.fixture(scope="session")
def swift_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StorageConfig]:
    """A bucket of Swift that all tests of a session share: use identities of your own."""
    with running(tmp_path_factory.mktemp("swift")) as storage:
        yield storage
