"""What people do without us, with the same CRIU on the same memory, and what this machine could do at best."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import obstore
from obstore.store import S3Store

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.dump import Dump, DumpRequest
from cedana_sched.store.storage_config import StorageConfig
from tests.bench.hog import HogLog, plain_hog

_COPY_BYTES = 4 << 20


class ByHand(msgspec.Struct, frozen=True):
    """`criu dump` into a folder, tar and zstd, then the tar to the store; and back by `criu restore`."""

    dump_seconds: float
    pack_seconds: float
    upload_seconds: float
    packed_bytes: int
    restore_seconds: float
    """From the start of `criu restore`, its images in the page cache, to the first tick."""

    @property
    def committed_seconds(self) -> float:
        return self.dump_seconds + self.pack_seconds + self.upload_seconds


class _Discard:
    """A sink that forgets what it is given."""

    def open_stream(self, name: str) -> _Discard:  # all images are forgotten alike
        return self

    def write(self, data: memoryview) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def by_hand(toolchain: Toolchain, directory: Path, mebibytes: int, storage: StorageConfig) -> ByHand:
    """Measure the way by hand; the process is dumped, killed and restored."""
    images = directory / "images"
    images.mkdir(parents=True)
    with plain_hog(directory, mebibytes) as pid:
        dump = _timed(lambda: _criu(toolchain, "dump", images, "--tree", str(pid), "--leave-running"))
    packed = directory / "images.tar.zst"
    pack = _timed(lambda: _run("tar", "--create", "--use-compress-program=zstd -1 -T0", "--file", packed, images))
    upload = _timed(lambda: put(packed, storage))
    began = time.time()
    _criu(toolchain, "restore", images, "--restore-detached", "--pidfile", str(directory / "pid"))
    try:
        restored = HogLog(directory).first_tick_after(began) - began
    finally:
        os.kill(int((directory / "pid").read_text()), 9)
    size = packed.stat().st_size
    packed.unlink()
    shutil.rmtree(images)
    return ByHand(dump, pack, upload, size, restored)


def discarded_dump(toolchain: Toolchain, directory: Path, mebibytes: int) -> float:
    """Seconds of `criu dump --stream` into a reader that throws everything away."""
    directory.mkdir(parents=True, exist_ok=True)
    with plain_hog(directory, mebibytes) as pid:
        request = DumpRequest(root_pid=pid, workdir=directory / "work")
        return Dump(toolchain, request, _Discard()).run().seconds


def write_seconds(size: int, directory: Path, storage: StorageConfig) -> float:
    """How long the store alone takes for as many bytes, incompressible ones, from the page cache."""
    source = directory / "random"
    with source.open("wb") as file:
        for _ in range(size // _COPY_BYTES + 1):
            file.write(os.urandom(_COPY_BYTES))
    os.sync()
    seconds = _timed(lambda: put(source, storage))
    source.unlink()
    return seconds


def put(source: Path, storage: StorageConfig) -> None:
    """Copy a file into a folder with fsync, or upload it to a bucket in parallel parts."""
    if storage.path is not None:
        storage.path.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as reader, (storage.path / source.name).open("wb") as writer:
            shutil.copyfileobj(reader, writer, _COPY_BYTES)
            writer.flush()
            os.fsync(writer.fileno())
        (storage.path / source.name).unlink()
        return
    assert storage.s3 is not None
    assert storage.s3.secret_key is not None
    bucket = S3Store(
        storage.s3.bucket, endpoint=storage.s3.endpoint, access_key_id=storage.s3.access_key,
        secret_access_key=storage.s3.secret_key.get_secret_value(), region=storage.s3.region,
        client_options={"allow_http": True},
    )  # fmt: skip
    obstore.put(bucket, source.name, source)
    obstore.delete(bucket, source.name)


def _criu(toolchain: Toolchain, verb: str, images: Path, *arguments: str) -> None:
    subprocess.run(
        [toolchain.criu, verb, "--images-dir", images, "--log-file", f"{verb}.log", *arguments],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=toolchain.criu_environment(),
    )  # fmt: skip


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
