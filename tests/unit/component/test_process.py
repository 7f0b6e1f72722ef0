"""How a component's process ends, in a process of its own: signals and the log belong to all of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = """
import asyncio, faulthandler, sys
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.component.configuration import ComponentConfiguration
from cedana_sched.component.process import run, run_with_graceful_stop, start

async def for_ever():
    try:
        print("begun", flush=True)
        await asyncio.Event().wait()
    finally:
        print("cleaned up", flush=True)

async def in_order(stopping):
    print("begun", flush=True)
    await stopping.wait()
    print("not ready", flush=True)
    await asyncio.sleep(0)
    print("over", flush=True)

async def fails():
    raise CedanaSchedError("the store is full", remedy="make room")

async def fails_in_a_task():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fails())
        tasks.create_task(asyncio.Event().wait())

async def is_defect():
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep("long"))

async def crashes():
    faulthandler._sigsegv()

work = globals()[sys.argv[1]]
go = run_with_graceful_stop if work is in_order else run
sys.exit(start("example", ComponentConfiguration, lambda _: go(work)))
"""


def begin(work: str, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, work],
        env={"CEDANA_SCHED_CONFIGURATION": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def logged(errors: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in errors.splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "component.json"
    path.write_text(json.dumps({"namespace": "ours"}))
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("work", "said"), [("for_ever", "cleaned up\n"), ("in_order", "not ready\nover\n")])
def test_a_signal_ends_it_in_good_order(file: Path, number: signal.Signals, work: str, said: str) -> None:
    with begin(work, file) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (0, said)
    assert [(line["event"], line["component"]) for line in logged(errors)] == [("stopping", "example")]


@pytest.mark.parametrize("work", ["fails", "fails_in_a_task"])
def test_an_error_of_ours_is_a_sentence(file: Path, work: str) -> None:
    with begin(work, file) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = logged(errors)
    assert (line["level"], line["errors"]) == ("error", ["the store is full (make room)"])
    assert "Traceback" not in errors


def test_a_defect_is_told_with_all_that_is_known(file: Path) -> None:
    with begin("is_defect", file) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    (line,) = logged(errors)
    assert line["event"] == "ended by a defect"
    assert "TypeError" in line["exception"]


def test_settings_of_a_newer_chart_are_said_before_it_begins(file: Path) -> None:
    file.write_text(json.dumps({"namespace": "ours", "later": 1, "log": {"format": "json", "colours": True}}))
    with begin("fails", file) as process:
        _, errors = process.communicate(timeout=30)
    *passed_over, _ = logged(errors)
    assert process.returncode == 1
    assert {(line["level"], line["setting"]) for line in passed_over} == {
        ("warning", "later"),
        ("warning", "log.colours"),
    }


def test_without_its_file_it_does_not_begin(tmp_path: Path) -> None:
    with begin("for_ever", tmp_path / "absent.json") as process:
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (2, "")
    assert "absent.json" in errors


def test_crash_in_native_code_says_where(file: Path) -> None:
    process = begin("crashes", file)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in errors
    assert "in crashes" in errors
