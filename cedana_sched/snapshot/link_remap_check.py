"""Open files whose opened name was deleted while another exists: a snapshot of them cannot be restored.

CRIU cannot find the other name, so it gives such a file a temporary one (`--link-remap`), records that, and removes the
name again when the dump leaves the processes alive, as every dump here does. The restore would not find it. Only in the
job's own /dev/shm, whose files are part of the snapshot together with the temporary name, it works: that is where
programs do this (a named semaphore is created under another name first).

So `dump` checks for them when it has succeeded otherwise, and refuses such a snapshot while the job still runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.model.errors import DumpError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Images

IMAGES = frozenset({"files.img", "remap-fpath.img"})
"""The images that must be kept for `require_restorable_remaps`."""

_LINKED = "LINKED"
_SAVED_WITH_NAMES = "/dev/shm/"  # noqa: S108


def require_restorable_remaps(
    toolchain: Toolchain, kept: Mapping[str, bytes | bytearray], *, saves_shared_memory: bool = True
) -> None:
    """Check the kept images. CRIU does not save a /dev/shm from outside.

    Raises:
        DumpError: an open file could not be found at the restore.
    """
    if "remap-fpath.img" not in kept:
        return
    images = Images(toolchain, lambda name: bytes(kept[name]))
    names = {entry["id"]: "/" + entry["reg"]["name"].lstrip("/") for entry in images.read_entries("files.img")
             if "reg" in entry}  # fmt: skip
    for remap in images.read_entries("remap-fpath.img"):
        if remap.get("remap_type", _LINKED) != _LINKED:
            continue
        saved = saves_shared_memory and names.get(remap["remap_id"], "").startswith(_SAVED_WITH_NAMES)
        if not saved:
            raise DumpError(
                f"a file is open under a name that was deleted, while it has another: {names.get(remap['orig_id'])}",
                remedy="let the program close it, or open it by the name that stays",
            )
