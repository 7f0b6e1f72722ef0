"""The binding of a container's terminal to /dev/console, which the images of a snapshot have as external.

runc binds the slave of a container's terminal (`tty: true`) to /dev/console; containerd's shim has the master. CRIU
refuses to dump such a binding without the master (criu/tty.c, `devpts_check_bindmount`), unless it is called by RPC
with `orphan_pts_master`, and only its command line can stream. So the dump declares the mount external, and this module
makes it the binding again that it was: `runc restore` calls CRIU by RPC with that option, gets the master of the
restored terminal from it, and passes it to the shim.

A volume may be mounted at /dev/console as well, and is external by the same name: it stays so. CRIU would bind it by
its path below another mount of its volume, as root and along whatever link the volume's users have put there since.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cedana_sched.cluster.node.containers.criu_dump_options import CONSOLE
from cedana_sched.snapshot.images import Images

_PATTERN: Final = "mountpoints-*.img"
_DEVPTS: Final = 6
"""`fstype` of a terminal's mount (CRIU, images/mnt.proto); no volume has it."""


def rebind_console(images: Images, folder: Path) -> bool:
    """Make the console's mount in staged images a binding of its terminal; return whether there was one to make.

    Raises:
        SnapshotError: an image of mounts cannot be decoded.
    """
    found = False
    for path in sorted(folder.glob(_PATTERN)):
        content = images.read_image(path.name) or {"entries": []}
        external = [entry for entry in content["entries"] if entry.get("ext_key") == CONSOLE]
        consoles = [entry for entry in external if entry["fstype"] == _DEVPTS]
        for entry in consoles:
            del entry["ext_key"]
        if consoles:
            images.replace(path, content)
            found = True
    return found
