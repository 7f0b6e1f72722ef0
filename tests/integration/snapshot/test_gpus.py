"""The driver is called by a process of its own: it may hang, crash, or print anything."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.gpus import Gpu, Gpus
from cedana_sched.snapshot import gpus
from tests import fake_pynvml
from tests.processes import children

A100 = {"name": "NVIDIA A100-SXM4-40GB", "uuid": "GPU-1", "memory": 42949672960}
FOUND = Gpu("NVIDIA A100-SXM4-40GB", "GPU-1", 42949672960)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a driver whose library behaves as set."""
    shutil.copy(fake_pynvml.__file__, tmp_path / "pynvml.py")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = tmp_path / "version"
    loaded.touch()
    monkeypatch.setattr(gpus, "DRIVER", (tmp_path / "none", loaded))

    def load(**settings: Any) -> None:
        monkeypatch.setenv("FAKE_NVML", json.dumps(settings))

    return load


async def test_gpus_are_named(driver: Any) -> None:
    driver(devices=[A100], prints="nvmlDeviceGetName")
    assert await gpus.find_gpus(seconds=60) == Gpus((FOUND,), driver="580.95.05", cuda="13.0")


async def test_a_driver_that_hangs_is_left_after_its_time(driver: Any) -> None:
    driver(devices=[A100], hangs="nvmlInit")
    before, began = children(), time.monotonic()
    assert await gpus.find_gpus(seconds=0.5) == Gpus(problem="the driver did not answer within 0.5 s")
    assert time.monotonic() - began < 30
    assert children() == before, "its process is killed"


async def test_a_process_that_cannot_be_killed_is_reported(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits in the kernel: another query would leave another one."""
    driver(devices=[A100], hangs="nvmlInit")
    monkeypatch.setattr(gpus, "_KILLED_SECONDS", 0.01)
    before = children()
    with monkeypatch.context() as patch:
        patch.setattr("cedana_sched.snapshot.gpus.os.killpg", lambda *_: None)
        assert await gpus.find_gpus(seconds=0.5) == Gpus(problem=gpus.HANGS)
    (left,) = children() - before
    os.kill(left, signal.SIGKILL)
    while children() != before:  # noqa: ASYNC110 - asyncio reaps it
        await asyncio.sleep(0.01)


async def test_a_search_that_is_cancelled_leaves_no_process(driver: Any) -> None:
    driver(devices=[A100], hangs="nvmlInit")
    before = children()
    looking = asyncio.create_task(gpus.find_gpus(seconds=600))
    while children() == before:  # noqa: ASYNC110 - nothing signals the start of a process
        await asyncio.sleep(0.01)
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert children() == before


async def test_a_driver_that_crashes_its_caller(driver: Any) -> None:
    driver(devices=[A100], dies="nvmlDeviceGetCount")
    found = await gpus.find_gpus(seconds=60)
    assert found == Gpus(problem="the driver crashed the process that used it: signal 11 ended it")


async def test_names_are_bounded(driver: Any) -> None:
    driver(devices=[A100 | {"name": "\x1b[2J\xff" + "A" * 10_000, "memory": 1 << 63}], driver="\n5\u00e9")
    found = await gpus.find_gpus(seconds=60)
    (gpu,) = found.devices
    assert gpu.name == "?[2J?" + "A" * 91
    assert gpu.memory_bytes is None
    assert found.driver == "?5?"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.stdout.write('{' * 100_000)", "could not be queried"),
        ("import sys\nwhile True: sys.stdout.write('x' * 65536)", "it does not end"),
        ("print('[]')", "could not be queried"),
        ("import sys; sys.exit(3)", "exit status 3"),
    ],
)
async def test_an_answer_that_is_none(driver: Any, monkeypatch: pytest.MonkeyPatch, program: str, words: str) -> None:
    driver()
    monkeypatch.setattr(gpus, "_COMMAND", ("python3", "-c", program))
    assert words in (await gpus.find_gpus(seconds=60)).problem


async def test_a_process_that_cannot_be_started(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver()
    monkeypatch.setattr(gpus, "_COMMAND", ("/nowhere/python",))
    assert "No such file" in (await gpus.find_gpus()).problem


async def test_without_a_driver_nothing_is_started(
    driver: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver(devices=[A100])
    monkeypatch.setattr(gpus, "DRIVER", (tmp_path / "none",))
    assert await gpus.find_gpus() == Gpus()
