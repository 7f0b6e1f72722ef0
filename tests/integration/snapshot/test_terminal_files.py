"""Files of terminals in images: those of /dev/tty get the terminal's name, and CRIU links ends and no two files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.errors import DumpError, RestoreError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.current_terminals import reopen_by_name, require_known_terminals
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.terminal_file_links import separate_terminal_files

_SLAVE, _MASTER, _CURRENT = os.makedev(136, 0), os.makedev(5, 2), os.makedev(5, 0)
_MODES = {"c_iflag": 0, "c_oflag": 5, "c_cflag": 0, "c_lflag": 0, "c_line": 0, "c_ispeed": 0, "c_ospeed": 0}
_SIZE = {"ws_row": 24, "ws_col": 80, "ws_xpixel": 0, "ws_ypixel": 0}
_OWNER = {"uid": 0, "euid": 0, "signum": 0, "pid_type": 0, "pid": 0}


def _terminal(number: int, device: int, session: int, *, hung: bool = False, rows: int = 24) -> dict[str, Any]:
    common = {
        "id": number, "locked": False, "exclusive": False, "packet_mode": False, "sid": session, "pgrp": session,
        "rdev": device, "dev": 6, "uid": 5, "gid": 5,
    }  # fmt: skip
    kind = {"type": "EXT_TTY"} if device == _CURRENT else {"type": "PTY", "pty": {"index": number // 2}}
    settings = {"termios": {**_MODES, "c_cc": [0]}, "winsize": {**_SIZE, "ws_row": rows}}
    return common | kind | ({} if hung else settings)


def _file(number: int, terminal: int, flags: int = os.O_RDWR) -> dict[str, Any]:
    tty = {"id": number, "tty_info_id": terminal, "flags": flags, "fown": _OWNER}
    return {"type": "TTY", "id": number, "tty": tty | ({"regf_id": 100 + number} if terminal < 1000 else {})}


class _Snapshot:
    def __init__(self, toolchain: Toolchain, folder: Path) -> None:
        self.toolchain = toolchain
        self.folder = folder
        self.images = Images(toolchain, folder_reader(folder))

    def lay(self, terminals: list[dict[str, Any]], files: list[dict[str, Any]], *tables: tuple[int, ...]) -> None:
        """Write images; `tables` are the ids of the files of each process."""
        self.images.replace(self.folder / "tty-info.img", {"magic": "TTY_INFO", "entries": terminals})
        self.images.replace(self.folder / "files.img", {"magic": "FILES", "entries": files})
        for number, table in enumerate(tables, start=1):
            entries = [{"id": file, "flags": 0, "type": "TTY", "fd": at} for at, file in enumerate(table)]
            self.images.replace(self.folder / f"fdinfo-{number}.img", {"magic": "FDINFO", "entries": entries})

    def prepare(self) -> None:
        for _ in range(2):  # also images that are prepared more than once
            reopen_by_name(self.images, self.folder)
            separate_terminal_files(self.images, self.folder)

    def check(self) -> None:
        require_known_terminals(self.toolchain, {"tty-info.img": (self.folder / "tty-info.img").read_bytes()})

    def terminals(self) -> dict[int, dict[str, Any]]:
        return {entry["id"]: entry for entry in self.images.read_entries("tty-info.img")}

    def files(self) -> dict[int, dict[str, Any]]:
        return {entry["id"]: entry["tty"] for entry in self.images.read_entries("files.img")}

    def held(self, table: int) -> list[int]:
        return [entry["id"] for entry in self.images.read_entries(f"fdinfo-{table}.img")]


@pytest.fixture
def snapshot(toolchain: Toolchain, tmp_path: Path) -> _Snapshot:
    return _Snapshot(toolchain, tmp_path)


def test_a_file_of_the_current_terminal_gets_its_name_and_leaves_the_ends_linked(snapshot: _Snapshot) -> None:
    ends = [_terminal(0, _SLAVE, 0), _terminal(1, _MASTER, 3)]
    opened = [_file(1, 0), _file(2, 1), _file(3, 2026), _file(4, 0)]
    snapshot.lay([*ends, _terminal(2026, _CURRENT, 3)], opened, (1, 2), (1, 3), (4,))
    snapshot.check()
    snapshot.prepare()
    files, terminals = snapshot.files(), snapshot.terminals()
    assert (files[3]["regf_id"], files[3]["flags"]) in {(101, os.O_RDWR), (104, os.O_RDWR)}
    assert files[4]["tty_info_id"] == files[3]["tty_info_id"]
    assert (files[1]["tty_info_id"], files[2]["tty_info_id"]) == (0, 1)
    other = files[3]["tty_info_id"]
    assert list(terminals) == [0, 1, other, other + 1]
    assert other % 2 == 0
    assert terminals[other] == {**terminals[0], "id": other}
    assert snapshot.held(2) == [1, 3]


def test_one_of_two_files_beside_a_master_outside_is_opened_last(snapshot: _Snapshot) -> None:
    snapshot.lay([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 1)], [_file(1, 0), _file(3, 2026)], (1, 3), (1,))
    snapshot.check()
    snapshot.prepare()
    files, terminals = snapshot.files(), snapshot.terminals()
    assert files[1]["tty_info_id"] == 0
    last = terminals[files[3]["tty_info_id"]]
    assert (last["type"], last["rdev"], last["uid"], "pty" in last) == ("CTTY", _CURRENT, 5, False)
    assert files[3]["regf_id"] == 101


def test_a_process_with_nothing_else_of_the_terminal_gets_a_duplicate_with_the_same_flags(snapshot: _Snapshot) -> None:
    opened = [_file(1, 0, os.O_RDONLY), _file(2, 0), _file(4, 0, os.O_WRONLY), _file(3, 2026)]
    snapshot.lay([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 1)], opened, (1,), (2,), (4,), (3,))
    snapshot.prepare()
    assert sorted(snapshot.files()) == [1, 2, 4]
    assert [snapshot.held(number) for number in (1, 2, 3, 4)] == [[1], [2], [4], [2]]


def test_an_odd_number_of_files_beside_a_master_outside_is_left_alone(snapshot: _Snapshot) -> None:
    opened = [_file(1, 0), _file(2, 0), _file(3, 2026)]
    snapshot.lay([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 1)], opened, (1, 2, 3))
    snapshot.prepare()
    assert {file["tty_info_id"] for file in snapshot.files().values()} == {0}
    assert list(snapshot.terminals()) == [0]


@pytest.mark.parametrize(
    ("terminals", "why"),
    [
        ([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 7)], r"no program .* by name \(session 7\)"),
        ([_terminal(1, _MASTER, 7), _terminal(2026, _CURRENT, 7)], r"no program .* by name \(session 7\)"),
        ([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 1, hung=True)], "its terminal has hung up"),
        ([_terminal(0, _SLAVE, 1), _terminal(2, _SLAVE, 2), _terminal(2026, _CURRENT, 0)], "not certain"),
        ([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 0, rows=25)], "not certain"),
    ],
    ids=["another session", "master alone", "hung up", "two terminals", "other settings"],
)
def test_a_terminal_that_is_not_certain_is_refused(
    snapshot: _Snapshot, terminals: list[dict[str, Any]], why: str
) -> None:
    snapshot.lay(terminals, [_file(3, 2026)])
    with pytest.raises(DumpError, match=f"a program has /dev/tty open, and .*{why}"):
        snapshot.check()
    with pytest.raises(RestoreError, match="is not in the snapshot"):
        snapshot.prepare()


def test_a_program_that_has_left_the_session_keeps_the_only_terminal(snapshot: _Snapshot) -> None:
    snapshot.lay([_terminal(0, _SLAVE, 1), _terminal(2026, _CURRENT, 0)], [_file(1, 0), _file(3, 2026)], (1,), (3,))
    snapshot.check()
    snapshot.prepare()
    assert snapshot.held(2) == [1]
