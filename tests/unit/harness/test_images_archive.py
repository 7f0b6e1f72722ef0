"""Archives of one program: what is in them, read back, and when they are written again."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.images.archive import BinaryImage, ensure_binary_image, write_archive

NAME = "registry.example.com:5000/kueue/kueue:v0.19.2"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "manager"
    path.write_bytes(os.urandom(3 << 20) + b"odd")
    path.chmod(0o755)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cedana-sched"


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_it_holds_what_the_format_of_docker_save_says(program: Path, tmp_path: Path) -> None:
    image = BinaryImage(
        NAME,
        {"/opt/bin/manager": program, "/etc/passwd": b"nonroot:x:65532:65532::/:/none\n"},
        ["/opt/bin/manager", "--leader-elect=false"],
        environment={"GOGC": "50"},
    )
    write_archive(tmp_path / "image.tar", image)
    with tarfile.open(tmp_path / "image.tar", "r:") as archive:
        (manifest,) = json.loads(read(archive, "manifest.json"))
        configuration: dict[str, Any] = json.loads(read(archive, manifest["Config"]))
        (layer,) = manifest["Layers"]
        content = read(archive, layer)
    assert manifest["RepoTags"] == [NAME]
    assert configuration["config"]["Entrypoint"] == ["/opt/bin/manager", "--leader-elect=false"]
    assert configuration["config"]["User"] == "65532:65532"
    assert "GOGC=50" in configuration["config"]["Env"]
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    (tmp_path / "layer.tar").write_bytes(content)
    with tarfile.open(tmp_path / "layer.tar", "r:") as files:
        assert files.getnames() == ["etc", "opt", "opt/bin", "tmp", "etc/passwd", "opt/bin/manager"]
        assert files.getmember("opt").isdir()
        assert files.getmember("tmp").mode == 0o1777
        assert files.getmember("etc/passwd").mode == 0o644
        assert files.getmember("opt/bin/manager").mode == 0o755
        assert read(files, "opt/bin/manager") == program.read_bytes()


def test_the_same_image_gives_the_same_bytes(program: Path, tmp_path: Path) -> None:
    image = BinaryImage(NAME, {"/manager": program}, ["/manager"])
    write_archive(tmp_path / "one.tar", image)
    os.utime(program, (0, 0))
    write_archive(tmp_path / "two.tar", image)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


async def test_it_is_written_once_and_again_when_the_program_changes(program: Path, cache: Path) -> None:
    image = BinaryImage(NAME, {"/manager": program}, ["/manager"])
    first = await ensure_binary_image(image)
    written = first.stat().st_mtime_ns
    assert await ensure_binary_image(image) == first
    assert first.stat().st_mtime_ns == written
    program.write_bytes(bytes(program.stat().st_size))  # built again, and by chance as long
    second = await ensure_binary_image(image)
    assert {path.name for path in (cache / "images").iterdir()} == {first.name, second.name}
    assert first != second


async def test_another_user_is_another_image(program: Path, cache: Path) -> None:
    one = await ensure_binary_image(BinaryImage(NAME, {"/manager": program}, ["/manager"]))
    two = await ensure_binary_image(BinaryImage(NAME, {"/manager": program}, ["/manager"], user="0:0"))
    assert one != two
    assert one.parent == cache / "images"


async def test_a_missing_program_is_named_with_its_image(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ClusterError, match=rf"{tmp_path}/none.*{NAME}.*build it first"):
        await ensure_binary_image(BinaryImage(NAME, {"/manager": tmp_path / "none"}, ["/manager"]))
    assert not (cache / "images").exists()
