"""`python -m tests.cluster.images [NAME…]`: lists the images, or builds those that are named; `all` are all of them."""

from __future__ import annotations

import asyncio
import sys

from tests.cluster.errors import ClusterError
from tests.cluster.images.buildah import ensure_image
from tests.cluster.images.catalog import Image, find_images
from tests.cluster.images.sandbox import SANDBOX_IMAGE, ensure_sandbox_image
from tests.cluster.steps import Steps

_SANDBOX = "pause"


def main(arguments: list[str]) -> int:
    try:
        images = find_images()
        if not arguments:
            _list(images)
        else:
            asyncio.run(_build(arguments, images))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _list(images: dict[str, Image]) -> None:
    print(f"{_SANDBOX:<16} {SANDBOX_IMAGE}")
    for image in images.values():
        print(f"{image.name:<16} {image.tag:<48} {image.containerfile}")


async def _build(names: list[str], images: dict[str, Image]) -> None:
    steps = Steps()
    wanted = [_SANDBOX, *images] if names == ["all"] else names
    unknown = [name for name in wanted if name not in images and name != _SANDBOX]
    if unknown:
        raise ClusterError(
            f"there is no image {unknown[0]!r}", remedy=f"name one of {', '.join([_SANDBOX, *images])}, or all"
        )
    for name in wanted:
        built = await (ensure_sandbox_image(steps) if name == _SANDBOX else ensure_image(steps, images[name]))
        print(f"{built}  {built.stat().st_size >> 10} KiB")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
