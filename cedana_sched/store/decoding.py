"""Decoding errors of bytes that any client may have written: readers of the store treat all of them as damage."""

from __future__ import annotations

import msgspec
import zstandard

from cedana_sched.model.errors import IntegrityError, UsageError
from cedana_sched.store.backend import Buffer

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError)
"""msgspec has no error of its own for invalid UTF-8; an invalid identity is a UsageError."""


def unpack(body: Buffer, most_bytes: int) -> bytes:
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
