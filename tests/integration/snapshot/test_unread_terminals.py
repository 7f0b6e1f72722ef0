"""What waits unread at a terminal's master is made what the program wrote, wherever images are made ready."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cedana_sched.cluster.node.restoring.criu_images import prepare_images as ready_for_a_pod
from cedana_sched.local.runs.restore_preparation import prepare_images as ready_for_a_job
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.restore import RestoreRequest

_MASTER, _SLAVE = 1, 0
_COOKED, _RAW = 5, 0
"""Modes of output (c_oflag): OPOST and ONLCR, as terminals have by default, and none."""
Ready = Callable[[Toolchain, Path], object]


@pytest.fixture(params=["pod", "job"])
def ready(request: pytest.FixtureRequest) -> Ready:
    if request.param == "pod":
        return lambda toolchain, images: ready_for_a_pod(toolchain, images, ())
    return lambda toolchain, images: ready_for_a_job(toolchain, RestoreRequest(images, images))


def _lay(images: Images, folder: Path, waiting: bytes, mode: int) -> None:
    numbers = {_MASTER: os.makedev(5, 2), _SLAVE: os.makedev(136, 0)}
    modes = {"c_iflag": 0, "c_oflag": mode, "c_cflag": 0, "c_lflag": 0, "c_line": 0, "c_ispeed": 0, "c_ospeed": 0}
    terminals = [
        {
            "id": number, "type": "PTY", "locked": False, "exclusive": False, "packet_mode": False, "sid": 1,
            "pgrp": 1, "rdev": device, "termios": {**modes, "c_cc": [0]},
        }
        for number, device in numbers.items()
    ]  # fmt: skip
    data = [{"tty_id": number, "data": base64.b64encode(waiting).decode()} for number in numbers]
    images.replace(folder / "tty-info.img", {"magic": "TTY_INFO", "entries": terminals})
    images.replace(folder / "tty-data.img", {"magic": "TTY_DATA", "entries": data})


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    ("waiting", "mode", "written"),
    [
        (b"a\r\nb\r\n", _COOKED, b"a\nb\n"),
        (b"a\r\r\n", _COOKED, b"a\r\n"),
        (b"a\rb", _COOKED, b"a\rb"),
        (b"a\r\n", _RAW, b"a\r\n"),
    ],
    ids=["lines", "the program's own carriage return", "no line", "raw"],
)
def test_waiting_output_is_what_the_program_wrote(
    toolchain: Toolchain, tmp_path: Path, ready: Ready, waiting: bytes, mode: int, written: bytes, times: int
) -> None:
    """Also of images that are made ready more than once."""
    images = Images(toolchain, folder_reader(tmp_path))
    _lay(images, tmp_path, waiting, mode)
    for _ in range(times):
        ready(toolchain, tmp_path)
    found = {entry["tty_id"]: base64.b64decode(entry["data"]) for entry in images.read_entries("tty-data.img")}
    assert found == {_MASTER: written, _SLAVE: waiting}
