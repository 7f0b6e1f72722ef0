"""Open files whose name was deleted while they have another: a snapshot of them would not come back.

CRIU cannot know the other name, so it gives such a file a temporary one (`--link-remap`), records that, and removes
the name again when the dump leaves the processes alive, as every dump here does. The restore would not find it. Only
in the job's own /dev/shm, whose files are part of the snapshot together with the temporary name, it works: that is
where programs do this (a named semaphore is made under another name first).

So `dump` looks for them when it has succeeded otherwise, and refuses such a snapshot while the job still runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot.images import Images
from cedana_sched.snapshot.toolchain import Toolchain

IMAGES = frozenset({"files.img", "remap-fpath.img"})
"""The images that must be kept for `refuse_lost_names`."""

_LINKED = "LINKED"
_SAVED_WITH_NAMES = "/dev/shm/"  # noqa: S108


def refuse_lost_names(
    toolchain: Toolchain, kept: Mapping[str, bytes | bytearray], *, saves_shared_memory: bool = True
) -> None:
    """Look through the images that were kept. A /dev/shm that comes from outside is not saved by CRIU.

    Raises:
        DumpError: a file is open that the restore would not find.
    """
    if "remap-fpath.img" not in kept:
        return
    images = Images(toolchain, lambda name: bytes(kept[name]))
    names = {entry["id"]: "/" + entry["reg"]["name"].lstrip("/") for entry in images.entries("files.img")
             if "reg" in entry}  # fmt: skip
    for remap in images.entries("remap-fpath.img"):
        if remap.get("remap_type", _LINKED) != _LINKED:
            continue
        saved = saves_shared_memory and names.get(remap["remap_id"], "").startswith(_SAVED_WITH_NAMES)
        if not saved:
            raise DumpError(
                f"a file is open under a name that was deleted, while it has another: {names.get(remap['orig_id'])}",
                remedy="let the program close it, or open it by the name that stays",
            )
