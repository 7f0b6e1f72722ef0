"""Removal of the sizes of files from images, where another comparison than CRIU's decides about these files."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.runtime_handler.outside_files import OutsideFiles
from cedana_sched.snapshot.images import Images, files_found_by_name

_IMAGE = "files.img"


def remove_recorded_sizes(images: Images, folder: Path, record: OutsideFiles | None) -> None:
    """Remove the sizes of the files of a record: CRIU would refuse each that has another size now.

    Args:
        images: decodes the images.
        folder: of these images.
        record: the files outside the snapshot, which are compared before the processes run.

    Raises:
        SnapshotError: an image cannot be decoded.
        OSError: an image cannot be changed.
    """
    compared = {file.path for file in record.files} if record is not None else set()
    content = images.read_image(_IMAGE) if compared else None
    if content is None:
        return
    sized = [file for file in files_found_by_name(images, content) if "size" in file and file["name"] in compared]
    for file in sized:
        del file["size"]
    if sized:
        images.replace(folder / _IMAGE, content)
