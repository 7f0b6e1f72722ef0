"""Which frozen threads wait in vfork, by what the kernel shows of them; tests/integration has the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.snapshot import vfork

IN_VFORK = "[<0>] kernel_clone+0x1af/0x3e0\n[<0>] __do_sys_vfork+0x43/0x70\n"
ASLEEP = "[<0>] hrtimer_nanosleep+0x74/0xf0\n[<0>] common_nsleep+0x30/0x60\n"
FROZEN = "[<0>] __refrigerator+0x5c/0x110\n[<0>] get_signal+0x8b5/0x8f0\n"


@pytest.mark.parametrize(
    ("wchan", "stack", "waits"),
    [
        pytest.param("kernel_clone", IN_VFORK, True, id="waits"),
        pytest.param("wait_for_vfork_done", None, True, id="waits, where it is not inlined"),
        pytest.param("hrtimer_nanosleep", ASLEEP, False, id="sleeps"),
        pytest.param("__refrigerator", FROZEN, False, id="frozen"),
        pytest.param("0", IN_VFORK, True, id="waits, on a busy processor's run queue"),
        pytest.param("0", ASLEEP, False, id="sleeps there"),
        pytest.param("0", "", False, id="runs"),
        pytest.param("0", None, False, id="a kernel that shows no stacks"),
        pytest.param(None, None, False, id="ended"),
    ],
)
def test_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wchan: str | None, stack: str | None, waits: bool
) -> None:
    for name, text in (("wchan", wchan), ("stack", stack)):
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(vfork, "_task_folders", lambda _: [tmp_path])
    assert vfork.held_by_vfork([42]) == ([42] if waits else [])
