"""Two runs are compared bit for bit."""

from pathlib import Path

import pytest

from workloads.comparing import differences, digest, tail


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    ours, reference = tmp_path / "ours", tmp_path / "reference"
    for directory in (ours, reference):
        directory.mkdir()
        (directory / "result").write_bytes(bytes(3 << 20))
    return ours, reference


def test_equal_files_do_not_differ(pair: tuple[Path, Path]) -> None:
    assert differences(*pair, ("result",)) == []
    assert digest(pair[0] / "result") == digest(pair[1] / "result")


def test_one_bit_is_found_and_its_place_named(pair: tuple[Path, Path]) -> None:
    data = bytearray((pair[0] / "result").read_bytes())
    data[2_500_000] ^= 1
    (pair[0] / "result").write_bytes(data)
    assert differences(*pair, ("result",)) == ["result: differs from byte 2500000 on"]


def test_a_shorter_file_is_named_with_both_lengths(pair: tuple[Path, Path]) -> None:
    (pair[0] / "result").write_bytes(b"short")
    assert differences(*pair, ("result",)) == [f"result: 5 bytes instead of {3 << 20}"]


@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_file_is_a_difference_on_either_side(pair: tuple[Path, Path], side: int) -> None:
    (pair[side] / "result").unlink()
    assert differences(*pair, ("result",)) == [f"result: missing in {pair[side]}"]


def test_the_tail_of_a_short_or_missing_file_is_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\ntwo\n")
    assert tail(tmp_path / "log", 4) == "two\n"
    assert tail(tmp_path / "log", 400) == "one\ntwo\n"
    assert tail(tmp_path / "none", 400) == ""
