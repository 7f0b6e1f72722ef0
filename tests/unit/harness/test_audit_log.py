"""The audit log is read while it is being written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.fixtures import audit
from tests.cluster.fixtures.audit import Audit


def line(name: str) -> bytes:
    moment = "2026-11-21T12:00:00.000000Z"
    entry = {
        "verb": "create",
        "stage": "ResponseComplete",
        "user": {"username": "somebody"},
        "requestReceivedTimestamp": moment,
        "stageTimestamp": moment,
        "objectRef": {"resource": "pods", "name": name},
        "responseStatus": {"code": 201},
    }
    return json.dumps(entry).encode() + b"\n"


@pytest.mark.parametrize("longest", [1 << 20, 7], ids=["in one step", "in many"])
@pytest.mark.parametrize("before", [b"", line("earlier")], ids=["none", "some"])
@pytest.mark.parametrize("written", [0, 1, 40], ids=["at a line's end", "at its first byte", "within it"])
def test_what_is_half_written_at_first_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, before: bytes, written: int
) -> None:
    monkeypatch.setattr(audit, "LONGEST_LINE", longest)
    log = tmp_path / "audit.log"
    log.write_bytes(before + line("first")[:written])
    reader = Audit(log)
    with log.open("ab") as file:
        file.write(line("first")[written:])
        file.write(line("second")[:30])
    assert [write.name for write in reader.writes()] == ["first"]
    with log.open("ab") as file:
        file.write(line("second")[30:])
    assert [write.name for write in reader.writes()] == ["first", "second"]


def test_an_entry_that_the_api_server_was_killed_in_the_middle_of_takes_no_other_with_it(tmp_path: Path) -> None:
    """It begins its next line where it stands."""
    log = tmp_path / "audit.log"
    log.touch()
    reader = Audit(log)
    kind = b'{"kind":"Event","apiVersion":"audit.k8s.io/v1",'
    first, cut, last = (kind + line(name).removeprefix(b"{").replace(b": ", b":") for name in ("first", "cut", "last"))
    log.write_bytes(first + cut[:120] + last)
    assert [write.name for write in reader.writes()] == ["first", "last"]
