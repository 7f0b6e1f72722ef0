"""Receiver of the images of `criu dump --stream`, which forwards them as they arrive.

CRIU connects to `streamer-capture.sock` in its images directory. For each image it sends a little-endian u32 length, a
protobuf message whose field 1 is the image's name, and then one byte that carries the reading end of a pipe; the name
`stop-listener` ends it (criu/img-streamer.c, images/img-streamer.proto). Many images are open at once, so each pipe has
a reader thread of its own; reading releases the GIL.

Independent of the store, which implements `ImageSink`.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

SOCKET_NAME = "streamer-capture.sock"
_STOP = "stop-listener"
_PIPE_BYTES = 1 << 20  # the most an unprivileged user may request, /proc/sys/fs/pipe-max-size
_BUFFER_BYTES = 4 << 20
_STOP_MESSAGE_SECONDS = 10.0  # the message precedes CRIU's exit; it has arrived or never will


class ImageWriter(Protocol):
    """Accepts the bytes of one image, in order, from one thread."""

    def write(self, data: memoryview) -> None:
        """Accept `data` (1 byte to 4 MiB). The memory is reused afterwards: copy to retain it."""

    def close(self) -> None:
        """End the image. The image is complete only if the dump as a whole succeeds."""


class ImageSink(Protocol):
    """Destination of images. Any exception stops the dump and becomes its cause."""

    def open_stream(self, name: str) -> ImageWriter:
        """Return a writer for the image `name`, like `pages-1.img`. Called in one thread, before the image's bytes."""


class StreamReceiver:
    """The listening end of one dump: `start`, run CRIU, then `finish` once CRIU has ended in any way.

    `failure` is the first exception of the sink, `bytes_received` and `bytes_stored` count at run time, and `kept` has
    copies of the small images named by `keep`.
    """

    def __init__(
        self,
        images_dir: Path,
        sink: ImageSink,
        on_failure: Callable[[], None],
        keep: frozenset[str] = frozenset(),
    ) -> None:
        self._sink = sink
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._pipes: set[int] = set()
        self._drains: list[threading.Thread] = []
        self._aborted = False
        self._over_reader, self._over_writer = os.pipe()  # its end of file ends every wait here
        self._listener = socket.socket(socket.AF_UNIX)
        self._connection: socket.socket | None = None
        self._acceptor = threading.Thread(target=self._accept_image_pipes, name="criu-stream-receiver", daemon=True)
        self._address = images_dir / SOCKET_NAME
        self.failure: BaseException | None = None
        self.bytes_received = 0
        self.bytes_stored = 0
        self._in_sink = 0
        self.names: list[str] = []
        self.kept: dict[str, bytearray] = {}
        self._keep = keep

    @property
    def waits_for_sink(self) -> bool:
        """Whether a part of the snapshot was received, and is not stored yet."""
        return self._in_sink > 0

    def start(self) -> None:
        """Listen. CRIU may be started as soon as this returns."""
        self._address.unlink(missing_ok=True)
        self._listener.bind(str(self._address))
        self._listener.listen(1)
        self._acceptor.start()

    def abort(self) -> None:
        """Accept no more bytes: CRIU's next write fails, and it aborts in an orderly way. Thread-safe."""
        with self._lock:
            self._aborted = True
            null = os.open("/dev/null", os.O_RDONLY)
            for pipe in self._pipes:
                os.dup2(null, pipe, inheritable=False)  # closes the pipe without freeing a number that a thread reads
            os.close(null)
            if self._connection is not None:
                with contextlib.suppress(OSError):  # CRIU is gone already
                    self._connection.shutdown(socket.SHUT_RDWR)

    def finish(self, *, complete: bool) -> None:
        """End the stream of a CRIU that has ended.

        Args:
            complete: CRIU succeeded, so all that it wrote must reach the sink first. Otherwise nothing is awaited: a
                helper of a killed CRIU may hold its pipes open for a while.
        """
        if complete:
            self._acceptor.join(_STOP_MESSAGE_SECONDS)
            if self._acceptor.is_alive():
                self._record_failure(ConnectionError("CRIU succeeded without ending its stream"))
        if not complete or self.failure:
            self._wake_waiters()
        self._acceptor.join()
        for drain in self._drains:
            drain.join()
        self._wake_waiters()
        os.close(self._over_reader)
        self._listener.close()
        self._address.unlink(missing_ok=True)

    def _wake_waiters(self) -> None:
        with self._lock:
            if self._over_writer >= 0:
                os.close(self._over_writer)
            self._over_writer = -1

    def _wait_until_readable(self, descriptor: int) -> bool:
        """Wait for data or the end of the pipe; False if the stream ends first."""
        waiter = select.poll()
        waiter.register(descriptor, select.POLLIN)
        waiter.register(self._over_reader, 0)  # its hang-up is always reported
        return any(ready == descriptor for ready, _ in waiter.poll())

    def _accept_image_pipes(self) -> None:
        try:
            if not self._wait_until_readable(self._listener.fileno()):
                return  # CRIU ended before it connected
            connection, _ = self._listener.accept()
            with connection:
                with self._lock:
                    self._connection = connection
                while self._wait_until_readable(connection.fileno()) and (message := _read_message(connection)):
                    self._begin_image(*message)
                with self._lock:
                    self._connection = None
        except BaseException as error:  # noqa: BLE001  whatever it is must reach the caller of the dump
            self._record_failure(error)

    def _begin_image(self, name: str, pipe: int) -> None:
        with self._lock:
            if self._aborted:
                os.close(pipe)
                return
            self._pipes.add(pipe)
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self.names.append(name)
        if name in self._keep:
            self.kept[name] = bytearray()
        try:
            with self._count_sink_call():
                writer = self._sink.open_stream(name)
        except BaseException:
            self._close_pipe(pipe)
            raise
        drain = threading.Thread(
            target=self._drain_pipe, args=(name, pipe, writer), name=f"criu-stream {name}", daemon=True
        )
        self._drains.append(drain)
        drain.start()

    def _drain_pipe(self, name: str, pipe: int, writer: ImageWriter) -> None:
        try:
            # anonymous memory costs nothing until it is touched: most images are far smaller than a buffer
            self._copy_to_writer(pipe, memoryview(mmap.mmap(-1, _BUFFER_BYTES)), writer, self.kept.get(name))
            with self._count_sink_call():
                writer.close()
        except BaseException as error:  # noqa: BLE001  a sink may raise anything; it becomes the dump's cause
            self._record_failure(error)
        finally:
            self._close_pipe(pipe)

    def _copy_to_writer(self, pipe: int, buffer: memoryview, writer: ImageWriter, copy: bytearray | None) -> None:
        used = 0
        while self._wait_until_readable(pipe) and (count := os.readv(pipe, [buffer[used:]])):
            with self._lock:
                self.bytes_received += count
            if copy is not None:
                copy += buffer[used : used + count]
            used += count
            if used == len(buffer):
                used = self._write_to_sink(buffer, writer)
        if used:
            self._write_to_sink(buffer[:used], writer)

    def _write_to_sink(self, data: memoryview, writer: ImageWriter) -> int:
        with self._count_sink_call():
            writer.write(data)
        with self._lock:
            self.bytes_stored += len(data)
        return 0

    @contextlib.contextmanager
    def _count_sink_call(self) -> Iterator[None]:
        with self._lock:
            self._in_sink += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_sink -= 1

    def _close_pipe(self, pipe: int) -> None:
        with self._lock:
            self._pipes.discard(pipe)
            os.close(pipe)

    def _record_failure(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error
        self.abort()
        self._on_failure()


def _read_message(connection: socket.socket) -> tuple[str, int] | None:
    """Return the next image's name and pipe; None if there are no more, or CRIU is gone."""
    header = _read_exactly(connection, 4)
    if header is None:
        return None
    message = _read_exactly(connection, struct.unpack("<I", header)[0])
    if message is None:
        return None
    name = _parse_name(message)
    if name == _STOP:
        return None
    _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_LEN(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC)
    if not ancillary:
        return None
    descriptors = array.array("i")
    descriptors.frombytes(ancillary[0][2][: descriptors.itemsize])
    return name, descriptors[0]


def _parse_name(message: bytes) -> str:
    """Parse field 1 of `img_streamer_request_entry`: tag 0x0a, a varint length (one byte: names are short), name."""
    if len(message) < 2 or message[0] != 0x0A or message[1] != len(message) - 2:
        raise ValueError(f"CRIU speaks another stream protocol: {message[:32]!r}")
    return message[2:].decode()


def _read_exactly(connection: socket.socket, count: int) -> bytes | None:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            return None
        data += part
    return data
