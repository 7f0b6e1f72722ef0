"""`python -m tests.cluster.images.release FOLDER`: builds the product's images, and writes both documents beside each.

    cedana-sched-<name>.tar              what `ctr images import`, `podman load` and `skopeo copy` take
    cedana-sched-<name>.cdx.json         what is in it: CycloneDX
    cedana-sched-<name>.provenance.json  what it is made of: an in-toto statement with SLSA's predicate

`make images` calls it.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.images.archive import file_name
from tests.cluster.images.buildah import ensure_image
from tests.cluster.images.catalog import REPOSITORY, Image, find_images
from tests.cluster.images.release.bill import bill_of_materials
from tests.cluster.images.release.contents import contents_of
from tests.cluster.images.release.debian_packages import debian_packages, pinned_digests, served_digests
from tests.cluster.images.release.provenance import provenance
from tests.cluster.steps import Steps

_NO_COMMIT = "what an image is made of is named by a commit"


def main(arguments: list[str]) -> int:
    (folder,) = map(Path, arguments)
    try:
        asyncio.run(_release(folder))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _release(folder: Path) -> None:
    steps, commit = Steps(), await _commit()
    folder.mkdir(parents=True, exist_ok=True)
    for image in (one for one in find_images().values() if one.is_product):
        archive = folder / f"{file_name(image.tag)}.tar"
        shutil.copyfile(await ensure_image(steps, image), archive)
        _describe(image, archive, commit)
        print(archive)


def _describe(image: Image, archive: Path, commit: str) -> None:
    contents = contents_of(archive)
    debian = list(debian_packages(contents, served_digests(contents.debian), pinned_digests(contents.architecture)))
    archive.with_suffix(".cdx.json").write_text(bill_of_materials(image, contents, debian))
    archive.with_suffix(".provenance.json").write_bytes(provenance(image, contents, debian, commit))


async def _commit() -> str:
    git = ("git", "-C", REPOSITORY)
    remedy = "build from a clone of the repository"
    if (await run(*git, "status", "--porcelain", what=_NO_COMMIT, remedy=remedy)).strip():
        raise ClusterError(f"{_NO_COMMIT}, and this working tree has changes", remedy="commit them")
    return (await run(*git, "rev-parse", "HEAD", what=_NO_COMMIT, remedy=remedy)).strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
