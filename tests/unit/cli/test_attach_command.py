"""What `attach` refuses, its keys, and where its output begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.cli.attach import ShownPosition
from cedana_sched.cli.detach_keys import DetachFilter, parse_detach_keys
from cedana_sched.model.errors import UsageError

from .conftest import Cli
from .fake_engine import FakeEngine, a_job


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (a_job(), "'md' has no terminal"),
        (a_job(tty=True, phase="Succeeded"), "'md' has ended already: Succeeded"),
    ],
)
def test_a_job_that_cannot_be_attached_to_is_refused(engine: FakeEngine, cli: Cli, job: object, reason: str) -> None:
    engine.jobs = {"4f6c1d2e9a7b": job}  # type: ignore[dict-item]
    result = cli("attach", "md")
    assert result.exit_code == 4
    assert reason in result.stderr
    assert "remedy: " in result.stderr


def test_wrong_keys_are_refused_before_anything_else(engine: FakeEngine, cli: Cli) -> None:
    result = cli("attach", "md", "--detach-keys", "ctrl-p,f12")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: detach-keys: 'ctrl-p,f12' has a key 'f12' that cannot be typed")
    assert engine.requests == []


@pytest.mark.parametrize(
    ("text", "keys"),
    [("ctrl-p,ctrl-q", b"\x10\x11"), ("~,.", b"~."), ("ctrl-@", b"\0"), ("ctrl-]", b"\x1d"), ("A", b"A")],
)
def test_keys_are_the_bytes_that_they_send(text: str, keys: bytes) -> None:
    assert parse_detach_keys(text) == keys


@pytest.mark.parametrize("text", ["", "ctrl-", "ctrl-1", "ab", "a,", "ctrl-é", "é", "a, b"])
def test_other_keys_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_detach_keys(text)
    assert (caught.value.field, caught.value.value) == ("detach-keys", text)


@pytest.mark.parametrize(
    ("typed", "passed", "leaves"),
    [
        ([b"abc"], b"abc", False),
        ([b"ab\x10\x11cd"], b"ab", True),
        ([b"ab\x10", b"\x11"], b"ab", True),
        ([b"\x10", b"x"], b"\x10x", False),
        ([b"\x10", b"\x10", b"\x11"], b"\x10", True),
        ([b"x\x10"], b"x", False),
    ],
)
def test_keys_are_found_however_they_arrive(typed: list[bytes], passed: bytes, leaves: bool) -> None:
    found = DetachFilter(b"\x10\x11")
    results = [found.filter(data) for data in typed]
    assert b"".join(data for data, _ in results) == passed
    assert results[-1][1] is leaves


def test_output_begins_where_the_last_terminal_left_off(tmp_path: Path) -> None:
    output = tmp_path / "stdout"
    job = a_job(stdout=str(output), tty=True)
    shown = ShownPosition(tmp_path, job)
    assert shown.load() == 0
    output.write_bytes(b"x" * 200_000)
    assert shown.load() == 200_000 - (64 << 10)
    shown.save(150_000)
    assert ShownPosition(tmp_path, job).load() == 150_000
    output.write_bytes(b"short")  # the file was emptied
    assert shown.load() == 5
