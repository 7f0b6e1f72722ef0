"""A restore that waits for a file system without an answer: it is tried again, and holds up no other job."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs import runtime
from cedana_sched.snapshot.restore import RestoreInterruptedError

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

pytestmark = pytest.mark.criu


async def test_a_file_system_that_does_not_answer_stops_one_restore_only(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, is_called = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        is_called.set()
        answers.wait(60)

    monkeypatch.setattr(runtime, "prepare_images", wait)
    monkeypatch.setattr(runtime, "_PREPARATION_SECONDS", 200.0)
    stuck = lab.shell("stuck", "true")
    restore = asyncio.create_task(lab.runtime.restore_from_images(stuck, Path("/nowhere"), {}))
    try:
        assert await asyncio.to_thread(is_called.wait, 10)
        other = lab.shell("other", "echo runs; sleep 60")
        await lab.runtime.start_cold(other, None)
        assert not restore.done()
        await lab.printed(other.uid, 1)
    finally:
        restore.cancel()
        answers.set()


async def test_a_preparation_without_an_end_is_tried_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(runtime, "prepare_images", lambda *_: answers.wait(60))
    monkeypatch.setattr(runtime, "_PREPARATION_SECONDS", 0.2)
    stuck = lab.shell("stuck", "true")
    with pytest.raises(RestoreInterruptedError, match=r"not examined within 0.2 s"):
        await lab.runtime.restore_from_images(stuck, Path("/nowhere"), {})
    answers.set()
