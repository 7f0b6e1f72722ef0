"""Mounts that a test has left are told from those that others make meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.leftovers import mounts_below

_MOUNTS = """\
21 1 8:1 / / rw - ext4 /dev/root rw
40 21 0:30 / /tmp/mine/state/root\\040folder rw - tmpfs none rw
41 21 0:31 / /tmp/mine rw - tmpfs none rw
42 21 0:32 / /tmp/mine-too rw - tmpfs none rw
43 21 0:33 / /run/netns/of-others rw - nsfs nsfs rw
"""


def test_mounts_below_a_folder_and_of_the_folder_itself() -> None:
    assert mounts_below(Path("/tmp/mine"), _MOUNTS) == ["/tmp/mine/state/root folder", "/tmp/mine"]


def test_mounts_of_others_do_not_count() -> None:
    assert mounts_below(Path("/tmp/elsewhere"), _MOUNTS) == []
