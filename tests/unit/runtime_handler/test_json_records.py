"""All records beside images are read alike: an unreadable one is named, with what is wrong, in a bounded text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.runtime_handler import privilege_record
from cedana_sched.runtime_handler.json_records import require_integer, require_list, require_text, require_true_or_false
from cedana_sched.runtime_handler.outside_files import OUTSIDE_FILES, read_outside_files
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, read_record

Read = Callable[[str], object]
OUTSIDE, VOLUME = (OUTSIDE_FILES, read_outside_files), (VOLUME_FILES, read_record)
BOTH = pytest.mark.parametrize(("name", "read"), [OUTSIDE, VOLUME])
FILE = ["/x", 1, 2, 3, 4, [[7, "fd/1", 1, 0]]]


def error_of(folder: Path, name: str, read: Read, text: str) -> str:
    (folder / name).write_text(text, errors="surrogatepass")
    with pytest.raises(ValueError, match=r"^the record of the files") as caught:
        read(str(folder))
    return str(caught.value)


@BOTH
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is unreadable: JSONDecodeError"),
        ("\ud800", "is unreadable: UnicodeDecodeError"),
        ("9" * 5000, "is unreadable: ValueError"),
        ("[" * 100_000, "is unreadable: it is nested too deep"),
        ("[]", "is unreadable: TypeError"),
        ("{}", "is unreadable: KeyError('version')"),
        ('{"version": 1}', "is unreadable: KeyError"),
        ('{"version": 2}', "is of version 2, not 1"),
        (json.dumps({"version": "2" * 10_000}), "is of version '222"),
        (json.dumps({"version": 1, "files": "x" * 10_000, "volumes": [], "problem": ""}), "is unreadable: TypeError"),
    ],
)
def test_an_unreadable_record_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, read: Read, text: str, reason: str
) -> None:
    error = error_of(tmp_path, name, read, text)
    assert reason in error
    assert len(error) < 300


@pytest.mark.parametrize("field", ["volumes", "files", "saved"])
@pytest.mark.parametrize("value", ["/data", {"/data": 1}, None, 7, ""])
def test_a_list_is_no_text_and_no_object(tmp_path: Path, field: str, value: object) -> None:
    """A text would be read as the list of its characters, of which one may be the root directory."""
    content: dict[str, object] = {"version": 1, "volumes": [], "files": [], "saved": []}
    assert " is no list" in error_of(tmp_path, *VOLUME, json.dumps(content | {field: value}))


def test_a_size_is_not_negative(tmp_path: Path) -> None:
    """A file is truncated to it."""
    file = [*FILE]
    (tmp_path / OUTSIDE_FILES).write_text(json.dumps({"version": 1, "problem": "", "files": [file]}))
    assert read_outside_files(str(tmp_path)) is not None
    file[3] = -(2**70)
    error = error_of(tmp_path, *OUTSIDE, json.dumps({"version": 1, "problem": "", "files": [file]}))
    assert "is no integer of 0 or more" in error


@pytest.mark.parametrize(
    ("require", "kept", "refused"),
    [
        (require_text, "x", [None, 1, [], {}]),
        (require_integer, -1, [None, "1", 1.0, True, []]),
        (require_list, [1], [None, "1", {}, 1]),
        (require_true_or_false, False, [None, 0, "", []]),
    ],
)
def test_no_value_of_another_type_is_assumed(
    require: Callable[[Any], object], kept: object, refused: list[Any]
) -> None:
    assert require(kept) == kept
    for value in refused:
        with pytest.raises(TypeError, match=" is n"):
            require(value)


def test_privileges_are_refused_in_a_bounded_text() -> None:
    privileges = {"version": "x" * 10_000, "container": {}, "processes": {}}
    with pytest.raises(ValueError, match="this is no record of privileges") as caught:
        privilege_record.decode(privileges)
    assert len(str(caught.value)) < 300
