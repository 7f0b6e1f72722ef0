"""Whatever CRIU's images of a pod's snapshot hold, they are made fit for their restore, or refused in words.

Not those of a job: by them files of this machine would be cut to any length.
"""

from __future__ import annotations

import importlib
import socket
import struct
import tempfile
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.cluster.node.restoring.criu_images import prepare_images
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Images, folder_reader
from cedana_sched.snapshot.snapshot_contents import inspect_snapshot

_COMMON_MAGIC = 0x54564319
"""IMG_COMMON_MAGIC of criu/include/magic.h, which each image begins with."""
_KINDS = {
    "core-1.img": "CORE",
    "filelocks.img": "FILE_LOCKS",
    "files.img": "FILES",
    "mountpoints-12.img": "MNTS",
    "remap-fpath.img": "REMAP_FPATH",
    "sk-queues.img": "SK_QUEUES",
    "tty-data.img": "TTY_DATA",
    "tty-info.img": "TTY_INFO",
}
"""Those that are read before a restore."""
_DEPTH = 4


def _write(path: Path, kind: str, entries: list[Any]) -> None:
    magic = importlib.import_module("pycriu.images.magic").by_name[kind]
    packed = [entry.SerializePartialToString() for entry in entries]
    head = struct.pack("<II", _COMMON_MAGIC, magic)
    path.write_bytes(head + b"".join(struct.pack("<i", len(one)) + one for one in packed))


def _fill(draw: Callable[..., Any], message: Any, depth: int = 0) -> Any:
    """Set fields of a protobuf message to anything that they can hold."""
    for field in message.DESCRIPTOR.fields:
        is_kept = field.is_required and draw(st.integers(0, 60)) > 0
        if not is_kept and (depth >= _DEPTH or draw(st.integers(0, 2)) == 0):
            continue
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                if field.type == field.TYPE_MESSAGE:
                    _fill(draw, getattr(message, field.name).add(), depth + 1)
                else:
                    getattr(message, field.name).append(draw(_value(field)))
        elif field.type == field.TYPE_MESSAGE:
            getattr(message, field.name).SetInParent()
            _fill(draw, getattr(message, field.name), depth + 1)
        else:
            setattr(message, field.name, draw(_value(field)))
    return message


def _value(field: Any) -> st.SearchStrategy[Any]:
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type == field.TYPE_BOOL:
        return st.booleans()
    if field.type == field.TYPE_STRING:
        return st.sampled_from(["", "a", "../../etc/passwd", "/dev/ptmx", "x" * 5000]) | st.text(max_size=20)
    if field.type == field.TYPE_BYTES:
        return st.binary(max_size=140)
    if field.type in (field.TYPE_INT32, field.TYPE_SINT32, field.TYPE_SFIXED32):
        return st.sampled_from([0, 1, 6, -1, -(1 << 31)]) | st.integers(-(1 << 31), (1 << 31) - 1)
    if field.type in (field.TYPE_INT64, field.TYPE_SINT64, field.TYPE_SFIXED64):
        return st.integers(-(1 << 63), (1 << 63) - 1)
    most = 32 if field.type in (field.TYPE_UINT32, field.TYPE_FIXED32) else 64
    return st.sampled_from([0, 1, 2, 6, 10, 0x502, 0x8800]) | st.integers(0, (1 << most) - 1)


_MANY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@_MANY
@given(st.data())
def test_any_fields_are_made_fit_or_refused(toolchain: Toolchain, data: st.DataObject) -> None:
    handlers = _handlers(toolchain)
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in _KINDS.items():
            if data.draw(st.booleans(), label=name):
                entries = [_fill(data.draw, handlers[kind].payload()) for _ in range(data.draw(st.integers(0, 2)))]
                _write(Path(folder) / name, kind, entries)
        with suppress(CedanaSchedError):
            prepare_images(toolchain, Path(folder), ())


_SHOWN = {
    "core-1.img": "CORE",
    "fdinfo-1.img": "FDINFO",
    "files.img": "FILES",
    "ids-1.img": "IDS",
    "inventory.img": "INVENTORY",
    "mm-1.img": "MM",
    "mountpoints-2.img": "MNTS",
    "pstree.img": "PSTREE",
}
"""Those that a person is shown something of."""


@_MANY
@given(st.data())
def test_any_fields_are_shown_or_refused(toolchain: Toolchain, data: st.DataObject) -> None:
    handlers = _handlers(toolchain)
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in _SHOWN.items():
            if data.draw(st.integers(0, 4), label=name):
                entries = [_fill(data.draw, handlers[kind].payload()) for _ in range(data.draw(st.integers(0, 2)))]
                for entry in entries:
                    for field in {"pid", "files_id"} & {one.name for one in entry.DESCRIPTOR.fields}:
                        setattr(entry, field, 1)  # one leads to the next
                _write(Path(folder) / name, kind, entries)
        with suppress(CedanaSchedError):
            inspect_snapshot(toolchain, folder_reader(Path(folder)))


def test_connections_without_addresses_are_no_loopback_connections(toolchain: Toolchain, tmp_path: Path) -> None:
    _write(tmp_path / "files.img", "FILES", [_internet_socket(toolchain, socket.IPPROTO_TCP)])

    assert prepare_images(toolchain, tmp_path, ()).criu == ("tcp-close",)
    [entry] = Images(toolchain, folder_reader(tmp_path)).read_entries("files.img")
    assert entry["isk"]["src_addr"] == []


_CONNECTED, _UNCONNECTED, _LISTENING = 1, 7, 10


@pytest.mark.parametrize(
    ("proto", "state", "own", "of_pod", "bound"),
    [
        (socket.IPPROTO_TCP, _LISTENING, "10.0.1.2", ["10.0.1.9"], "10.0.1.9"),
        (socket.IPPROTO_TCP, _LISTENING, "::ffff:10.0.1.2", ["10.0.1.9", "2001:db8::9"], "::ffff:10.0.1.9"),
        (socket.IPPROTO_TCP, _LISTENING, "2001:db8::2", ["10.0.1.9", "2001:db8::9"], "2001:db8::9"),
        (socket.IPPROTO_TCP, _UNCONNECTED, "10.0.1.2", ["10.0.1.9"], "10.0.1.9"),
        (socket.IPPROTO_UDP, _UNCONNECTED, "10.0.1.2", ["10.0.1.9"], "10.0.1.9"),
        (socket.IPPROTO_UDP, _CONNECTED, "10.0.1.2", ["10.0.1.9"], "10.0.1.9"),
        (socket.IPPROTO_TCP, _CONNECTED, "10.0.1.2", ["10.0.1.9"], "10.0.1.2"),
        (socket.IPPROTO_TCP, _LISTENING, "127.0.0.1", ["10.0.1.9"], "127.0.0.1"),
        (socket.IPPROTO_TCP, _LISTENING, "0.0.0.0", ["10.0.1.9"], "0.0.0.0"),  # noqa: S104  # what an image has
        (socket.IPPROTO_UDP, _UNCONNECTED, "239.1.1.1", ["10.0.1.9"], "239.1.1.1"),
        (socket.IPPROTO_UDP, _CONNECTED, "::1", ["2001:db8::9"], "::1"),
        # of several networks, or of another version
        (socket.IPPROTO_TCP, _LISTENING, "10.0.1.2", ["10.0.1.9", "10.9.9.9"], "10.0.1.2"),
        (socket.IPPROTO_TCP, _LISTENING, "10.0.1.2", ["2001:db8::9"], "10.0.1.2"),
        (socket.IPPROTO_UDP, _CONNECTED, "10.0.1.2", [], "0.0.0.0"),  # noqa: S104  # what an image has
        (socket.IPPROTO_UDP, _CONNECTED, "::ffff:10.0.1.2", [], "::"),
        (socket.IPPROTO_UDP, _CONNECTED, "2001:db8::2", [], "::"),
    ],
)
def test_sockets_are_bound_to_the_address_of_the_new_pod(
    toolchain: Toolchain, tmp_path: Path, proto: int, state: int, own: str, of_pod: list[str], bound: str
) -> None:
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    _write(tmp_path / "files.img", "FILES", [_bound_socket(toolchain, proto, state, own)])

    prepare_images(toolchain, tmp_path, list(map(ip_address, of_pod)))

    [entry] = Images(toolchain, folder_reader(tmp_path)).read_entries("files.img")
    assert entry["isk"]["src_addr"] == _words(family, bound)
    assert entry["isk"]["dst_addr"] == _words(family, own)
    assert (entry["isk"]["src_port"], entry["isk"]["dst_port"]) == (5000, 53)


def test_sockets_of_a_pod_that_had_several_addresses_keep_them(toolchain: Toolchain, tmp_path: Path) -> None:
    sockets = [_bound_socket(toolchain, socket.IPPROTO_TCP, _LISTENING, own) for own in ("10.0.1.2", "10.9.0.2")]
    _write(tmp_path / "files.img", "FILES", sockets)

    prepare_images(toolchain, tmp_path, [ip_address("10.0.1.9")])

    entries = Images(toolchain, folder_reader(tmp_path)).read_entries("files.img")
    kept = [_words(socket.AF_INET, own) for own in ("10.0.1.2", "10.9.0.2")]
    assert [entry["isk"]["src_addr"] for entry in entries] == kept


def _bound_socket(toolchain: Toolchain, proto: int, state: int, own: str) -> Any:
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    files = _internet_socket(toolchain, proto)
    files.isk.family, files.isk.state, files.isk.src_port, files.isk.dst_port = family, state, 5000, 53
    files.isk.src_addr.extend(_words(family, own))
    files.isk.dst_addr.extend(_words(family, own))
    return files


def _words(family: int, address: str) -> list[int]:
    packed = socket.inet_pton(family, address)
    return list(struct.unpack(f"<{len(packed) // 4}I", packed))


def _internet_socket(toolchain: Toolchain, proto: int) -> Any:
    files = _handlers(toolchain)["FILES"].payload()
    files.type, files.id = 2, 7  # INETSK
    for required in (one for one in files.isk.DESCRIPTOR.fields if one.is_required):
        if required.type == required.TYPE_MESSAGE:
            getattr(files.isk, required.name).SetInParent()
        else:
            setattr(files.isk, required.name, 1)
    files.isk.proto = proto
    for part in (files.isk.fown, files.isk.opts):
        for required in (one for one in part.DESCRIPTOR.fields if one.is_required):
            setattr(part, required.name, 1)
    return files


@pytest.mark.parametrize("kind", sorted({*_KINDS.values(), "PSTREE"}))
def test_an_image_of_another_kind_is_refused(toolchain: Toolchain, tmp_path: Path, kind: str) -> None:
    name = "files.img" if kind != "FILES" else "core-1.img"
    _handlers(toolchain)
    _write(tmp_path / name, kind, [])
    with pytest.raises(CedanaSchedError, match=f"it calls itself {kind}"):
        Images(toolchain, folder_reader(tmp_path)).read_image(name)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(name=st.sampled_from(sorted(_KINDS)), content=st.binary(max_size=200))
def test_any_bytes_are_refused_in_words(toolchain: Toolchain, name: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        magic = _magic(toolchain, _KINDS[name])
        (Path(folder) / name).write_bytes(struct.pack("<II", _COMMON_MAGIC, magic) + content)
        with suppress(CedanaSchedError):
            prepare_images(toolchain, Path(folder), ())


def _handlers(toolchain: Toolchain) -> Any:
    Images(toolchain, folder_reader(Path("/nonexistent")))  # makes pycriu importable
    return importlib.import_module("pycriu.images.images").handlers


def _magic(toolchain: Toolchain, kind: str) -> int:
    _handlers(toolchain)
    found: int = importlib.import_module("pycriu.images.magic").by_name[kind]
    return found
