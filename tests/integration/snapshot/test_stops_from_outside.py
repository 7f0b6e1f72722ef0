"""Requests to end that came to a frozen container from outside do not come back with it."""

from __future__ import annotations

import base64
import signal
import struct
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.outside_stop_signals import drop_outside_stops

_OUTSIDE, _OWN = 0, 7
"""Senders, as the kernel names them to the container."""


def _pending(*signals: tuple[int, int]) -> dict[str, Any]:
    packed = [struct.pack("<iii4xi", number, 0, 0, sender).ljust(128, b"\0") for number, sender in signals]
    return {"signals": [{"siginfo": base64.b64encode(one).decode()} for one in packed]} if packed else {}


def _lay(images: Images, folder: Path, shared: dict[str, Any], private: dict[str, Any]) -> None:
    action = {"blk_sigset": 0, "comm": "a", "exit_code": 0, "flags": 0, "personality": 0, "task_state": 1}
    thread = {"futex_rla": 0, "futex_rla_len": 0, "signals_p": private}
    entry = {"mtype": "X86_64", "tc": {**action, "signals_s": shared}, "thread_core": thread}
    images.replace(folder / "core-1.img", {"magic": "CORE", "entries": [entry]})


def _left(images: Images) -> tuple[list[int], list[int]]:
    (entry,) = images.read_entries("core-1.img")
    queues = (entry["tc"].get("signals_s", {}), entry["thread_core"].get("signals_p", {}))
    shared, private = (
        [struct.unpack_from("<i", base64.b64decode(one["siginfo"]))[0] for one in queue.get("signals", ())]
        for queue in queues
    )
    return shared, private


@pytest.mark.parametrize(
    ("shared", "private", "left"),
    [
        ([(signal.SIGTERM, _OUTSIDE)], [], ([], [])),
        ([], [(signal.SIGTERM, _OUTSIDE)], ([], [])),
        ([(signal.SIGTERM, _OUTSIDE), (signal.SIGUSR1, _OWN)], [], ([signal.SIGUSR1], [])),
        ([(signal.SIGTERM, _OWN)], [(signal.SIGINT, _OWN)], ([signal.SIGTERM], [signal.SIGINT])),
        ([(signal.SIGHUP, _OUTSIDE)], [], ([signal.SIGHUP], [])),
        ([], [], ([], [])),
    ],
    ids=["the kubelet's", "to a thread", "beside another", "its own", "no request to end", "none"],
)
def test_what_comes_from_outside_is_dropped_alone(
    toolchain: Toolchain,
    tmp_path: Path,
    shared: list[tuple[int, int]],
    private: list[tuple[int, int]],
    left: tuple[list[int], list[int]],
) -> None:
    images = Images(toolchain, folder_reader(tmp_path))
    _lay(images, tmp_path, _pending(*shared), _pending(*private))
    dropped = drop_outside_stops(toolchain, tmp_path)
    assert _left(images) == left
    assert dropped == len(shared) + len(private) - sum(map(len, left))
