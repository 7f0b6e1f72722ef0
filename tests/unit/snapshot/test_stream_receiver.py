"""The receiving end of `criu dump --stream`, against a sender that speaks the protocol as CRIU does."""

from __future__ import annotations

import array
import os
import socket
import struct
from pathlib import Path

import pytest

from cedana_sched.snapshot.image_stream_receiver import SOCKET_NAME, StreamReceiver


class MemorySink:
    def __init__(self) -> None:
        self.images: dict[str, bytearray] = {}
        self.closed: set[str] = set()

    def open_stream(self, name: str) -> MemoryWriter:
        self.images[name] = bytearray()
        return MemoryWriter(self, name)


class MemoryWriter:
    def __init__(self, sink: MemorySink, name: str) -> None:
        self.sink = sink
        self.name = name

    def write(self, data: memoryview) -> None:
        if self.name == "poison":
            raise OSError("the store is full")
        self.sink.images[self.name] += data

    def close(self) -> None:
        self.sink.closed.add(self.name)


class Sender:
    """CRIU's end."""

    def __init__(self, folder: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(str(folder / SOCKET_NAME))

    def open(self, name: str) -> int:
        reading, writing = os.pipe()
        self.announce(name)
        rights = array.array("i", [reading])
        self.connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(reading)
        return writing

    def announce(self, name: str) -> None:
        message = b"\n" + bytes([len(name)]) + name.encode()
        self.connection.sendall(struct.pack("<I", len(message)) + message)

    def send(self, name: str, data: bytes) -> None:
        with os.fdopen(self.open(name), "wb") as pipe:
            pipe.write(data)

    def stop(self) -> None:
        self.announce("stop-listener")
        self.close()

    def close(self) -> None:
        self.connection.close()


def is_broken(pipe: int) -> bool:
    """Write more than any pipe holds: it breaks, or this waits until the test's time is over."""
    try:
        for _ in range(64):
            os.write(pipe, b"x" * 65536)
    except BrokenPipeError:
        return True
    return False


@pytest.fixture
def sink() -> MemorySink:
    return MemorySink()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def receiver(tmp_path: Path, sink: MemorySink, failures: list[str]) -> StreamReceiver:
    return StreamReceiver(tmp_path, sink, lambda: failures.append("told"))


def test_images_of_every_size_arrive_whole(tmp_path: Path, receiver: StreamReceiver, sink: MemorySink) -> None:
    sizes = {"empty.img": 0, "one.img": 1, "four.img": 4 << 20, "odd.img": (9 << 20) + 17}
    contents = {name: os.urandom(size) for name, size in sizes.items()}
    receiver.start()
    sender = Sender(tmp_path)
    for name, data in contents.items():
        sender.send(name, data)
    sender.stop()
    receiver.finish(complete=True)
    assert {name: bytes(data) for name, data in sink.images.items()} == contents
    assert sink.closed == set(contents)
    assert receiver.bytes_received == sum(sizes.values())
    assert receiver.names == list(contents)
    assert not (tmp_path / SOCKET_NAME).exists()


def test_many_images_are_open_at_once(tmp_path: Path, receiver: StreamReceiver, sink: MemorySink) -> None:
    receiver.start()
    sender = Sender(tmp_path)
    pipes = {name: sender.open(name) for name in (f"image-{number}" for number in range(40))}
    for round_number in range(3):
        for pipe in pipes.values():
            os.write(pipe, bytes([round_number]) * 1000)
    for pipe in pipes.values():
        os.close(pipe)
    sender.stop()
    receiver.finish(complete=True)
    assert {bytes(data) for data in sink.images.values()} == {bytes(1000) + b"\1" * 1000 + b"\2" * 1000}


def test_a_sender_that_never_comes(receiver: StreamReceiver) -> None:
    receiver.start()
    receiver.finish(complete=False)
    assert receiver.failure is None
    assert receiver.names == []


@pytest.mark.parametrize("sent", [b"", b"\x05", b"\x05\0\0\0", b"\x05\0\0\0\n\x03ab"])
def test_a_sender_that_dies_within_a_message(tmp_path: Path, receiver: StreamReceiver, sent: bytes) -> None:
    receiver.start()
    sender = Sender(tmp_path)
    sender.connection.sendall(sent)
    sender.close()
    receiver.finish(complete=False)
    assert receiver.failure is None


def test_a_pipe_that_somebody_holds_open_does_not_hang(tmp_path: Path, receiver: StreamReceiver) -> None:
    """A helper of a killed CRIU may live on with its pipes."""
    receiver.start()
    sender = Sender(tmp_path)
    held = sender.open("held.img")
    os.write(held, b"some")
    receiver.finish(complete=False)
    sender.close()
    os.close(held)


def test_a_sink_that_fails_closes_every_pipe(tmp_path: Path, receiver: StreamReceiver, failures: list[str]) -> None:
    receiver.start()
    sender = Sender(tmp_path)
    other = sender.open("other.img")
    os.write(other, b"fine")
    with pytest.raises(BrokenPipeError):
        sender.send("poison", b"x" * (8 << 20))
    assert is_broken(other)
    os.close(other)
    sender.close()
    receiver.finish(complete=False)
    assert str(receiver.failure) == "the store is full"
    assert failures == ["told"]


def test_an_abort_ends_writing(tmp_path: Path, receiver: StreamReceiver) -> None:
    receiver.start()
    sender = Sender(tmp_path)
    pipe = sender.open("pages.img")
    os.write(pipe, b"x")
    receiver.abort()
    assert is_broken(pipe)
    os.close(pipe)
    sender.close()
    receiver.finish(complete=False)


def test_another_protocol_is_refused(tmp_path: Path, receiver: StreamReceiver) -> None:
    receiver.start()
    sender = Sender(tmp_path)
    sender.connection.sendall(struct.pack("<I", 4) + b"\x12\x02ab")
    receiver.finish(complete=True)
    sender.close()
    assert "another stream protocol" in str(receiver.failure)
