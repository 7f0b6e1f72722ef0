"""Whatever an archive is made of, laying it ends, in words or well, and touches nothing outside its folder."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cedana_sched.runtime_handler import layer
from cedana_sched.runtime_handler.layer import LayerError, unpack_layer

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="owners are kept, which needs root"),
    pytest.mark.timeout(120),
]

NAMES = st.sampled_from([
    "a", "a/b", "a/b/c", "b", "./a", "a//b", "../host/passwd", "/passwd", "..", ".", "", "a/../../host", "x" * 300,
    "a/" * 3_000 + "b", "\udcff", "é", "host", "a\nb", ".wh.a",
])  # fmt: skip
LINKS = st.sampled_from(
    ["", "a", "b", "a/b", "{host}", "{host}/passwd", "../host", "../host/passwd", "/", ".", "a/../.."]
)
KINDS = st.sampled_from([
    tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE,
    tarfile.BLKTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"V", b"\0",
])  # fmt: skip
ATTRIBUTES = st.dictionaries(
    st.sampled_from([
        "SCHILY.xattr.user.a", "SCHILY.xattr.trusted.overlay.opaque", "SCHILY.xattr.trusted.overlay.whiteout",
        "SCHILY.xattr.security.capability", "SCHILY.xattr.", "SCHILY.xattr.no", "mtime", "size", "path", "linkpath",
        "uid", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.realsize",
        "GNU.sparse.name",
    ]),
    st.sampled_from(["", "y", "-1", "0", "1", "3", "-512", "1.5", "nan", "9" * 30, "9" * 5_000, "0,3", "0,-1,-1,3",
                     "2,9", "../host/passwd", "{host}/passwd", "a", "1,0,1,0"]),
    max_size=3,
)  # fmt: skip
CONTENT = b"new" + b"1\n0\n3\n".ljust(512, b"\0")


@st.composite
def members(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "name": draw(NAMES),
        "type": draw(KINDS),
        "linkname": draw(LINKS),
        "mode": draw(st.sampled_from([0, 0o644, 0o4755, 0o7777])),
        "mtime": draw(st.sampled_from([0, 5, -5, 1 << 33, 1 << 62])),
        "uid": draw(st.sampled_from([0, 1000, 1 << 20])),
        "pax_headers": draw(ATTRIBUTES),
    }


def written(entries: list[dict[str, Any]], host: Path) -> bytes:
    """An archive of these; a member that tarfile itself cannot write is left out."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as made:
        for one in entries:
            info = tarfile.TarInfo(one["name"])
            for field, value in one.items():
                setattr(info, field, value)
            info.linkname = one["linkname"].format(host=host)
            info.pax_headers = {key: value.format(host=host) for key, value in one["pax_headers"].items()}
            has_content = info.type in {tarfile.REGTYPE, tarfile.CONTTYPE, b"\0"}
            info.size = len(CONTENT) if has_content else 0
            try:
                made.addfile(info, io.BytesIO(CONTENT) if has_content else None)
            except (ValueError, OverflowError):
                continue
    return file.getvalue()


def state(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Of all that lies in a folder, without its content where it is none of a regular file."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_nlink, status.st_mtime_ns, content)
    return found


def lay_anything(data: bytes | list[dict[str, Any]], **options: bool) -> str | None:
    """What was said of it; the folder beside is as it was."""
    with tempfile.TemporaryDirectory() as place:
        volume, host, archive = Path(place) / "volume", Path(place) / "host", Path(place) / "archive.tar"
        for folder in (volume, host, host / "lib"):
            folder.mkdir()
        (host / "passwd").write_text("root")
        (volume / "a").symlink_to(host)
        (volume / "b").mkdir()
        archive.write_bytes(data if isinstance(data, bytes) else written(data, host))
        before, said = state(host), None
        try:
            unpack_layer(str(archive), str(volume), **options)
        except LayerError as error:
            said = str(error)
        except OSError as error:
            if error.errno != errno.ENOSPC:  # of attributes, as file systems say it
                raise
            said = str(error)
        assert state(host) == before
        assert sorted(path.name for path in Path(place).iterdir()) == ["archive.tar", "host", "volume"]
        return said


OPTIONS = st.sampled_from([{}, {"instead": True, "is_harmless": True}])
fuzz = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@fuzz
@given(st.lists(members(), min_size=1, max_size=6), OPTIONS)
def test_an_archive_of_any_members(entries: list[dict[str, Any]], options: dict[str, bool]) -> None:
    lay_anything(entries, **options)


GOOD: list[dict[str, Any]] = [
    {"name": name, "type": kind, "linkname": link, "mode": 0o755, "mtime": 5, "uid": 7, "pax_headers": attributes}
    for name, kind, link, attributes in (
        ("d", tarfile.DIRTYPE, "", {}),
        ("d/file", tarfile.REGTYPE, "", {"SCHILY.xattr.user.a": "b"}),
        ("d/link", tarfile.SYMTYPE, "file", {}),
        ("d/hard", tarfile.LNKTYPE, "d/file", {}),
        ("p", tarfile.FIFOTYPE, "", {}),
        ("x" * 200, tarfile.REGTYPE, "", {"mtime": "5.25"}),
    )
]
WHOLE = written(GOOD, Path("/nowhere"))


def checked(data: bytes) -> bytes:
    """With the checksum of each header right, as anybody can make it."""
    changed = bytearray(data)
    for at in range(0, len(changed) - 511, 512):
        block = changed[at : at + 512]
        if block[257:262] == b"ustar":
            changed[at + 148 : at + 156] = b" " * 8
            changed[at + 148 : at + 156] = b"%06o\0 " % sum(changed[at : at + 512])
    return bytes(changed)


@fuzz
@given(
    st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12)), min_size=1, max_size=4),
    st.integers(0, len(WHOLE)) | st.none(),
    OPTIONS,
)
def test_an_archive_with_any_bytes_changed(
    changes: list[tuple[int, bytes]], length: int | None, options: dict[str, bool]
) -> None:
    data = bytearray(WHOLE)
    for at, by in changes:
        data[at : at + len(by)] = by[: len(data) - at]
    lay_anything(checked(bytes(data))[:length], **options)


SIZES = st.integers(-(1 << 40), 1 << 62) | st.sampled_from([-1, -512, -513, -1024, -(1 << 20), 1 << 31, 1 << 62])


def with_size(size: int, kind: bytes, place: int = 0, whole: bytes = WHOLE) -> bytes:
    """It, and one header of it says another size, in base 256 (tar(5), "Numeric Extensions"), and kind."""
    data = bytearray(whole)
    headers = [at for at in range(0, len(data), 512) if data[at + 257 : at + 262] == b"ustar"]
    at = headers[place % len(headers)]
    data[at + 124 : at + 136] = (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)
    data[at + 156 : at + 157] = kind
    return checked(bytes(data))


@fuzz
@given(SIZES, st.sampled_from([b"0", b"x", b"g", b"L", b"K", b"S", b"5", b"7", b"V"]), st.integers(0, 8), OPTIONS)
@example(-1024, b"0", 0, {})
@example(1 << 40, b"x", 0, {})
def test_a_member_of_any_size(size: int, kind: bytes, place: int, options: dict[str, bool]) -> None:
    lay_anything(with_size(size, kind, place), **options)


@fuzz
@given(st.binary(max_size=2048), OPTIONS)
def test_any_bytes(data: bytes, options: dict[str, bool]) -> None:
    lay_anything(data, **options)
    lay_anything(checked(data), **options)


@pytest.mark.parametrize("size", [-512, -(1 << 20)])
def test_a_member_that_leads_back_is_not_laid_for_ever(size: int) -> None:
    """The folder itself is passed over, with all that such a member says."""
    root = written([GOOD[0], {**GOOD[1], "name": ".", "pax_headers": {}}], Path("/nowhere"))
    assert "leads back in the archive" in str(lay_anything(with_size(size, b"0", 1, root)))


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
@pytest.mark.parametrize("size", [-5, (16 << 20) + 1, 1 << 40])
def test_a_header_is_read_as_far_as_one_may_be_long(size: int, kind: bytes) -> None:
    assert f"header of {size} bytes" in str(lay_anything(with_size(size, kind)))


@pytest.mark.parametrize("runs", ["0,-1", "5,2", "0,2,1,2", "-1,1", "0,4"])
def test_the_content_of_a_file_with_holes_lies_within_it(runs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "_copy_exactly", lambda *_: pytest.fail("it was copied"))
    attributes = {"GNU.sparse.map": runs, "GNU.sparse.size": "3", "GNU.sparse.name": "s"}
    sparse = {**GOOD[1], "pax_headers": attributes}
    assert "holes that no file can have" in str(lay_anything([sparse]))


def test_a_file_that_is_one_hole_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "_copy_exactly", lambda *_: pytest.fail("it was copied"))
    sparse = {**GOOD[1], "pax_headers": {"GNU.sparse.size": str(1 << 30)}}
    assert lay_anything([sparse]) is None


def test_the_good_archive_of_these_tests_is_laid() -> None:
    assert lay_anything(WHOLE) is None
    assert lay_anything(checked(WHOLE)) is None
