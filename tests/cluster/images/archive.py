"""Images of one static program, written straight as an archive: no engine, no shell, no distribution.

The layer is not compressed: it travels no further than this machine, and containerd then only has to copy it.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from tests.cluster.cache import cache_dir, digest, made_once
from tests.cluster.errors import ClusterError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

RECIPE = 1
"""Raised when what this module writes changes."""

_BLOCK = tarfile.BLOCKSIZE
_COPY_BYTES = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_EPOCH = "1970-01-01T00:00:00Z"

NONROOT = "65532:65532"
PASSWD = b"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
GROUP = b"root:x:0:\nnonroot:x:65532:\n"


@dataclass(frozen=True)
class BinaryImage:
    """What an image holds and how it starts.

    Args:
        name: with registry and tag, as pods name it.
        files: path in the image → a file of this machine, with its mode, or the content itself.
        entrypoint: the program's path in the image, and arguments.
        user: numeric, so that Kubernetes can see that it is not root.
        directories: path in the image → mode. Those that files lie in need not be named.
        environment: variables.
    """

    name: str
    files: Mapping[str, Path | bytes]
    entrypoint: Sequence[str]
    user: str = NONROOT
    directories: Mapping[str, int] = field(default_factory=lambda: {"/tmp": 0o1777})
    environment: Mapping[str, str] = field(default_factory=dict)


async def ensure_binary_image(image: BinaryImage) -> Path:
    """Return the image's archive, written first where it is missing.

    Files of this machine are known by path, size and time of change: they are large, and lie in a cache by digest.

    Raises:
        ClusterError: a file is not there.
    """
    contents = {path: _identity(image, source) for path, source in image.files.items()}
    key = digest(
        RECIPE, image.name, contents, list(image.entrypoint), image.user, dict(image.directories),
        dict(image.environment),
    )  # fmt: skip

    async def make(partial: Path) -> None:
        await asyncio.to_thread(write_archive, partial, image)

    return await made_once(cache_dir() / "images" / f"{file_name(image.name)}-{key}.tar", make)


def file_name(image_name: str) -> str:
    """Return the last part of an image's name, without its tag."""
    return image_name.rsplit("/", 1)[-1].partition(":")[0]


def write_archive(target: Path, image: BinaryImage) -> None:
    """Write the image in the format of `docker save`; the same image gives the same bytes."""
    with target.open("wb") as out:
        diff_id = _write_layer(out, image)
        config = json.dumps(_config(image, diff_id), sort_keys=True).encode()
        config_name = f"{hashlib.sha256(config).hexdigest()}.json"
        manifest = [{"Config": config_name, "RepoTags": [image.name], "Layers": [f"{diff_id}.tar"]}]
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for name, content in ((config_name, config), ("manifest.json", json.dumps(manifest).encode())):
                archive.addfile(_entry(name, len(content)), io.BytesIO(content))


def _write_layer(out: IO[bytes], image: BinaryImage) -> str:
    """Write the layer as the archive's first member; its name and size are known, and written, afterwards."""
    out.write(bytes(_BLOCK))
    hashed = _Hashed(out)
    with tarfile.TarFile(fileobj=hashed, mode="w", format=tarfile.PAX_FORMAT, copybufsize=_COPY_BYTES) as layer:
        for path, mode in _all_directories(image):
            layer.addfile(_entry(path, 0, mode=mode, kind=tarfile.DIRTYPE))
        for path, source in sorted(image.files.items()):
            if isinstance(source, bytes):
                layer.addfile(_entry(_inside(path), len(source)), io.BytesIO(source))
            else:
                status = source.stat()
                with source.open("rb") as file:
                    layer.addfile(_entry(_inside(path), status.st_size, mode=status.st_mode & 0o755), file)
    size = out.tell() - _BLOCK
    out.seek(0)
    out.write(_entry(f"{hashed.hexdigest()}.tar", size).tobuf(tarfile.USTAR_FORMAT))
    out.seek(_BLOCK + size)
    return hashed.hexdigest()


class _Hashed(io.RawIOBase):
    """A file that is only written to, and the SHA-256 of what was."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._hash = hashlib.sha256()

    def tell(self) -> int:
        return self._out.tell()

    def write(self, data: ReadableBuffer) -> int:
        self._hash.update(data)
        return self._out.write(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def _all_directories(image: BinaryImage) -> Iterator[tuple[str, int]]:
    modes = {_inside(path): mode for path, mode in image.directories.items()}
    for path in [*modes, *map(_inside, image.files)]:
        for parent in PurePosixPath(path).parents:
            if str(parent) != ".":
                modes.setdefault(str(parent), 0o755)
    return iter(sorted(modes.items()))


def _entry(path: str, size: int, *, mode: int = 0o644, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode, entry.type = size, mode, kind
    return entry


def _inside(path: str) -> str:
    return path.strip("/")


def _config(image: BinaryImage, diff_id: str) -> dict[str, object]:
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "created": _EPOCH,
        "config": {
            "User": image.user,
            "Entrypoint": list(image.entrypoint),
            "Env": [f"{name}={value}" for name, value in sorted({"PATH": "/", **image.environment}.items())],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff_id}"]},
        "history": [{"created": _EPOCH, "created_by": "tests.cluster.images.archive"}],
    }


def _identity(image: BinaryImage, source: Path | bytes) -> list[object]:
    if isinstance(source, bytes):
        return [hashlib.sha256(source).hexdigest()]
    try:
        status = source.stat()
    except OSError as error:
        raise ClusterError(
            f"{source}, which image {image.name} is made of, cannot be read: {error.strerror}", remedy="build it first"
        ) from error
    return [str(source), status.st_size, status.st_mtime_ns, status.st_mode & 0o777]
