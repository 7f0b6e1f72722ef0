"""How much of a manifest's body becomes objects, told before it does.

What stands in an unsealed store was written by anybody, and a byte of it may become seventy in memory: an empty list in
the facts of the runtime. Columns take what they are long. The rest has a bound, and so have the streams.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from cedana_sched.model.errors import IntegrityError

MOST_STREAMS: Final = 500_000
"""4,096 processes of 100 threads each with 10,000 deleted files are 450,000. Each takes 300 bytes of memory."""
MOST_NAMES_BYTES: Final = 64 << 20
"""Of what stands with the streams beside their columns: 60 to 100 bytes each, of which the half is its name."""
MOST_METADATA_BYTES: Final = 2 << 20
"""Most of it is what the containers of a pod were allowed: 8 KiB for one that was allowed everything."""


class _Stream(msgspec.Struct, frozen=True):
    segments: msgspec.Raw


class _Outline(msgspec.Struct, frozen=True):
    """What takes more memory than its bytes is not decoded."""

    summary: msgspec.Raw
    metadata: msgspec.Raw
    streams: Annotated[list[_Stream], msgspec.Meta(max_length=MOST_STREAMS)]
    chunks: msgspec.Raw
    page_index: msgspec.Raw = msgspec.Raw()


_outlines = msgspec.msgpack.Decoder(_Outline)


def require_bounded(body: bytes, most_summary_bytes: int) -> None:
    """Raise if more of a manifest's body, unpacked, would become objects than of any that we write.

    Raises:
        IntegrityError: saying what.
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
