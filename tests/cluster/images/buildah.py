"""Builds Containerfiles with buildah: as root of this machine, in a storage of its own, with what it can reach.

A `RUN` line is a chroot. It sees this machine's apt settings and the wheels that were downloaded for it as mounts over
folders that are empty in the base image, so that the same Containerfile builds anywhere else and nothing of this
machine stays in the image.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cluster.cache import cache_dir, digest, exclusive, forget_older, fresh_log, made_once
from tests.cluster.commands import run
from tests.cluster.debian import NOTHING_LEFT_BEHIND, PIP_SETTINGS, AptSettings, apt_settings, base_root
from tests.cluster.errors import ClusterError
from tests.cluster.images.catalog import BASE_NAME, Image
from tests.cluster.images.inputs import inputs_digest
from tests.cluster.images.requirements import for_python
from tests.cluster.steps import Steps

RECIPE = 1
"""Raised when what this module does with a Containerfile changes."""

PYTHON = "3.13"
"""Of the base image's Debian."""

_GLIBC = (17, 24, 26, 27, 28, 31, 34, 39)
"""Minor versions of glibc 2 that wheels are made for, up to that of the base image's Debian."""

_IMPORT = """\
base=$1 name=$2; shift 2
container=$("$@" from scratch)
"$@" add --quiet "$container" "$base" /
"$@" commit --quiet --rm "$container" "$name"
"""


async def ensure_image(steps: Steps, image: Image) -> Path:
    """Return the image's archive, built first where it is missing or something that it is made of has changed.

    Raises:
        ClusterError: naming the Containerfile and the log.
    """
    image.check_bases()
    base = await base_root(steps)

    async def make(partial: Path) -> None:
        with steps.step(f"image {image.tag}"):
            storage = await _storage(base)
            async with exclusive(storage.name):
                await _build(image, storage, partial)
                forget_older(target, image.name)

    key = digest(RECIPE, base.name, image.tag, inputs_digest(image))
    target = cache_dir() / "images" / f"{image.name}-{key}.tar"
    return await made_once(target, make)


async def _storage(base: Path) -> Path:
    """Return buildah's storage, which holds the base image and the layers of earlier builds on it."""

    async def make(partial: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            await run(
                *NOTHING_LEFT_BEHIND, "sh", "-ec", _IMPORT, "import", base, BASE_NAME, *_buildah(partial, Path(folder)),
                what=f"importing {base} as {BASE_NAME} failed", remedy="read the log", log=fresh_log("image-base.log"),
            )  # fmt: skip

    return await made_once(cache_dir() / f"image-storage-{digest(RECIPE, base.name)}", make)


async def _build(image: Image, storage: Path, target: Path) -> None:
    log = fresh_log(f"image-{image.name}.log")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        apt = await apt_settings(work / "apt")
        pip = await _pip_settings(image, work / "pip", log)
        buildah = (*NOTHING_LEFT_BEHIND, *_buildah(storage, work / "run"))
        what = f"building {image.containerfile} failed"
        damaged = f"if {storage} is damaged, delete it and try again"
        await run(*buildah, "rm", "--all", what=what, remedy=damaged, log=log)  # left by one that was killed
        await run(
            *buildah, "build", "--isolation=chroot", "--layers", "--pull-never", "--tag", image.tag,
            *(f"--build-arg={name}={value}" for name, value in image.build_arguments.items()),
            "--file", image.containerfile, *_ignore_option(image), *_mounts(apt, pip), image.context,
            what=what, remedy=f"read the log; {damaged}", env=apt.proxies, log=log,
        )  # fmt: skip
        await run(
            *buildah, "push", "--quiet", image.tag, f"docker-archive:{target}:{image.tag}",
            what=f"writing {target} failed", remedy=damaged, log=log,
        )  # fmt: skip


def _buildah(storage: Path, runroot: Path) -> tuple[str, ...]:
    if shutil.which("buildah") is None:
        raise ClusterError("buildah is not installed", remedy="apt-get install buildah")
    return ("buildah", "--root", str(storage), "--runroot", str(runroot), "--storage-driver", "overlay")


def _ignore_option(image: Image) -> tuple[str, ...]:
    return ("--ignorefile", str(image.ignore_file)) if image.ignore_file else ()


def _mounts(apt: AptSettings, pip: Path) -> list[str]:
    mounts = [f"{apt.folder / name}:/etc/apt/{name}:ro" for name in AptSettings.FOLDERS]
    return [f"--volume={mount}" for mount in (*mounts, f"{pip}:/{PIP_SETTINGS}:ro")]


async def _pip_settings(image: Image, folder: Path, log: Path) -> Path:
    """Write what pip in a `RUN` reads: nothing, or where the wheels are that the image needs."""
    requirements = image.requirements
    _write_pip_configuration(folder, has_wheels=bool(requirements))
    if requirements:
        machine = platform.machine()
        readable = [folder / f"requirements-{number}.txt" for number in range(len(requirements))]
        for path, source in zip(readable, requirements, strict=True):
            path.write_text(for_python(source.read_text(encoding="utf-8"), PYTHON), encoding="utf-8")
        await run(
            sys.executable, "-m", "pip", "download", "--only-binary=:all:", f"--python-version={PYTHON}",
            *(f"--platform=manylinux_2_{minor}_{machine}" for minor in _GLIBC), f"--platform=manylinux2014_{machine}",
            f"--dest={folder / 'wheels'}", *(f"--requirement={path}" for path in readable),
            what=f"downloading the wheels of {image.containerfile} failed", log=log,
            remedy="check that pip reaches an index, and that there are wheels of all requirements",
        )  # fmt: skip
    return folder


def _write_pip_configuration(folder: Path, *, has_wheels: bool) -> None:
    folder.mkdir()
    if has_wheels:
        (folder / "pip.conf").write_text(f"[global]\nno-index = true\nfind-links = /{PIP_SETTINGS}/wheels\n")
