"""Decoding of bytes that any client may have written: readers of the store treat every error of it as damage.

Sizes are checked before decoding. A byte of a manifest's body may decode to seventy bytes in memory: an empty list in
the runtime's facts. Columns take their own length. The rest is bounded, and so are the streams.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import zstandard

from cedana_sched.model.errors import IntegrityError, UsageError
from cedana_sched.store.backend import Buffer

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError)
"""msgspec has no error of its own for invalid UTF-8; an invalid identity is a UsageError."""
MOST_STREAMS: Final = 500_000
"""4,096 processes of 100 threads each with 10,000 deleted files are 450,000. Each takes 300 bytes of memory."""
MOST_NAMES_BYTES: Final = 64 << 20
"""Per stream, beside the columns: 60 to 100 bytes, half of which is the name."""
MOST_METADATA_BYTES: Final = 2 << 20
"""Mostly what the containers of a pod were allowed: 8 KiB for a container that was allowed everything."""
_LONGEST_SHORT_MAP: Final = 15
"""Fields of a map that MessagePack writes with a header of one byte; more have one of three."""


def decompress_bounded(body: Buffer, most_bytes: int) -> bytes:
    """Decompress a Zstandard frame; its declared size is checked first, because a small frame may declare many GiB.

    Raises:
        IntegrityError: not a frame, or larger than `most_bytes`.
    """
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= most_bytes:
            raise IntegrityError(f"it says that it is {size:,} bytes long, of {most_bytes:,} at most")
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=most_bytes)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"it is no Zstandard frame: {error}") from error


class _Stream(msgspec.Struct, frozen=True):
    segments: msgspec.Raw


_Fields = Annotated[dict[Annotated[str, msgspec.Meta(max_length=64)], msgspec.Raw], msgspec.Meta(max_length=64)]
_fields = msgspec.msgpack.Decoder(_Fields)
_streams = msgspec.msgpack.Decoder(Annotated[list[_Stream], msgspec.Meta(max_length=MOST_STREAMS)])


def require_bounded(body: bytes, most_summary_bytes: int) -> None:
    """Raise if a manifest's unpacked body would decode to more objects than any that we write.

    Raises:
        IntegrityError: naming the part.
        msgspec.MsgspecError: it has another shape.
    """
    fields = _fields.decode(body)
    lengths = {name: _length(value) for name, value in fields.items()}
    _require_unique_fields(body, lengths)
    streams = _streams.decode(fields["streams"]) if "streams" in fields else []
    columns = sum(_length(one.segments) for one in streams)
    columns += lengths.get("chunks", 0) + lengths.get("page_index", 0)
    summary, metadata = lengths.get("summary", 0), lengths.get("metadata", 0)
    for what, length, most in (
        ("summary", summary, most_summary_bytes),
        ("metadata", metadata, MOST_METADATA_BYTES),
        ("names", len(body) - columns - summary - metadata, MOST_NAMES_BYTES),
    ):
        if length > most:
            raise IntegrityError(f"{length:,} bytes of {what}, of {most:,} at most")


def _require_unique_fields(body: bytes, lengths: dict[str, int]) -> None:
    """Raise if the map has a field twice: its decoder would make objects of both, and keep one.

    Args:
        body: the map.
        lengths: by field, of the encoded value.
    """
    header = 1 if len(lengths) <= _LONGEST_SHORT_MAP else 3
    if header + sum(len(msgspec.msgpack.encode(name)) + length for name, length in lengths.items()) != len(body):
        raise IntegrityError("a field of it stands twice")


def _length(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
