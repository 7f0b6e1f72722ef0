"""Bounds on the objects that a manifest's body decodes to, checked before decoding.

Any client may have written an unsealed store, and a byte may decode to seventy bytes in memory: an empty list in the
runtime's facts. Columns take their own length. The rest is bounded, and so are the streams.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cedana_sched.model.errors import IntegrityError

MOST_STREAMS: Final = 500_000
"""4,096 processes of 100 threads each with 10,000 deleted files are 450,000. Each takes 300 bytes of memory."""
MOST_NAMES_BYTES: Final = 64 << 20
"""Per stream, beside the columns: 60 to 100 bytes, half of which is the name."""
MOST_METADATA_BYTES: Final = 2 << 20
"""Mostly what the containers of a pod were allowed: 8 KiB for a container that was allowed everything."""


class _Stream(msgspec.Struct, frozen=True):
    segments: msgspec.Raw


class _Outline(msgspec.Struct, frozen=True):
    """The parts of the body that take more memory than their bytes stay undecoded."""

    summary: msgspec.Raw
    metadata: msgspec.Raw
    streams: Annotated[list[_Stream], msgspec.Meta(max_length=MOST_STREAMS)]
    chunks: msgspec.Raw
    page_index: msgspec.Raw = msgspec.Raw()


_outlines = msgspec.msgpack.Decoder(_Outline)


def require_bounded(body: bytes, most_summary_bytes: int) -> None:
    """Raise if a manifest's unpacked body would decode to more objects than any that we write.

    Raises:
        IntegrityError: naming the part.
        msgspec.MsgspecError: it has another shape.
    """
    outline = _outlines.decode(body)
    columns = [*(one.segments for one in outline.streams), outline.chunks, outline.page_index]
    named = {
        "summary": (_length(outline.summary), most_summary_bytes),
        "metadata": (_length(outline.metadata), MOST_METADATA_BYTES),
    }
    rest = len(body) - sum(map(_length, columns)) - sum(length for length, _ in named.values())
    named["names"] = rest, MOST_NAMES_BYTES
    for what, (length, most) in named.items():
        if length > most:
            raise IntegrityError(f"{length:,} bytes of {what}, of {most:,} at most")


def _length(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
