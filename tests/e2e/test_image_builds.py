"""Containerfiles are built with what this machine can reach, and nothing of this machine stays in the image."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.images.buildah import ensure_image
from tests.cluster.images.catalog import Image, find_images
from tests.cluster.steps import Steps

CONTAINERFILE = """\
# wheels: requirements.txt
FROM debian:trixie-slim
RUN apt-get update && apt-get install --yes --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/*
COPY requirements.txt /
RUN python3 -m venv /opt/app && /opt/app/bin/pip install --no-cache-dir --requirement /requirements.txt
USER 1000
"""


@pytest.fixture
def image(tmp_path: Path) -> Image:
    folder = tmp_path / "tests/e2e/images/probe"
    folder.mkdir(parents=True)
    (folder / "Containerfile").write_text(CONTAINERFILE)
    (folder / "requirements.txt").write_text("msgspec\n")
    return find_images(tmp_path)["probe"]


def contents(archive: Path) -> dict[str, bytes]:
    """Every file of every layer, by its path; a later layer's in place of an earlier one's."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as outer:
        (manifest,) = json.loads(read(outer, "manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=io.BytesIO(read(outer, layer))) as inner:
                files |= {member.name: read(inner, member.name) for member in inner if member.isreg()}
    return files


def read(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


@pytest.mark.any_shape
@pytest.mark.exhaustive  # the product's images are built in the same way
async def test_packages_and_wheels_are_found_and_their_settings_stay_out(image: Image) -> None:
    archive = await ensure_image(Steps(), image)
    try:
        files = contents(archive)
    finally:
        archive.unlink()
    assert "usr/bin/python3.13" in files
    assert "opt/app/lib/python3.13/site-packages/msgspec/__init__.py" in files
    settings = ("etc/apt/sources.list", "etc/apt/apt.conf.d/90machine", "etc/apt/keyrings/", "etc/xdg/pip/")
    assert not [name for name in files if name.startswith(settings)]
    assert files["etc/machine-id"] == b""
    assert all(files[name] == b"" for name in ("etc/hostname", "etc/hosts", "etc/resolv.conf"))


@pytest.mark.any_shape
async def test_a_failing_line_is_named_with_the_file_and_the_log(image: Image) -> None:
    image.containerfile.write_text("FROM debian:trixie-slim\nRUN echo a riddle; exit 7\n")
    with pytest.raises(ClusterError, match=r"exit status 7") as caught:
        await ensure_image(Steps(), image)
    assert str(image.containerfile) in caught.value.what
    assert caught.value.log is not None
    assert "a riddle" in caught.value.log.read_text()
