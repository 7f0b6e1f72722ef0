"""Which mounts of a snapshot become bindings that CRIU makes itself: that of the terminal alone, and never a volume."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from cedana_sched.cluster.node.containers.criu_dump_options import CONSOLE
from cedana_sched.cluster.node.restoring.console_rebinding import rebind_console
from cedana_sched.snapshot.images import Entry, Images

DEVPTS, AUTO = 6, 16
IMAGE = "mountpoints-12.img"


class _MountsOnly:
    """The images of a snapshot with one image of mounts."""

    def __init__(self, folder: Path, *entries: Entry) -> None:
        (folder / IMAGE).touch()
        self._entries = entries
        self.replaced: dict[str, Entry] = {}

    def read_image(self, name: str) -> Entry:
        assert name == IMAGE
        return {"magic": "MNTS", "entries": [dict(entry) for entry in self._entries]}

    def replace(self, path: Path, content: Entry) -> None:
        self.replaced[path.name] = content

    def rebind(self, folder: Path) -> bool:
        return rebind_console(cast("Images", self), folder)


def _mount_at_console(fstype: int, root: str) -> Entry:
    return {"fstype": fstype, "root": root, "mountpoint": f".{CONSOLE}", "ext_key": CONSOLE}


def test_the_terminal_is_bound_by_criu_itself(tmp_path: Path) -> None:
    images = _MountsOnly(tmp_path, _mount_at_console(DEVPTS, "/0"))
    assert images.rebind(tmp_path)
    assert [entry.get("ext_key") for entry in images.replaced[IMAGE]["entries"]] == [None]


def test_a_volume_at_the_console_is_not_bound_by_its_path(tmp_path: Path) -> None:
    """`subPath: x` at /dev/console, beside the whole volume: x may be a link to the node's root by now."""
    whole = {"fstype": AUTO, "root": "/volumes/v", "mountpoint": "./data", "ext_key": "/data"}
    images = _MountsOnly(tmp_path, whole, _mount_at_console(AUTO, "/volumes/v/x"))
    assert not images.rebind(tmp_path)
    assert not images.replaced


def test_a_volume_below_the_terminal_stays_external(tmp_path: Path) -> None:
    images = _MountsOnly(tmp_path, _mount_at_console(AUTO, "/volumes/v/x"), _mount_at_console(DEVPTS, "/0"))
    assert images.rebind(tmp_path)
    assert [entry.get("ext_key") for entry in images.replaced[IMAGE]["entries"]] == [CONSOLE, None]
