"""What decoding raises for bytes that anybody may have written: whoever reads the store treats all of it as damage."""

from __future__ import annotations

import msgspec
import zstandard

from cedana_sched.model.errors import IntegrityError, UsageError
from cedana_sched.store.backend import Buffer

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError)
"""msgspec has no error of its own for text that is no UTF-8; an identity that is none is a UsageError."""


def unpack(body: Buffer, most_bytes: int) -> bytes:
    """What a Zstandard frame holds; a small one may say that it is many GiB, so that is looked at first.

    Raises:
        IntegrityError: it is none, or larger.
    """
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= most_bytes:
            raise IntegrityError(f"it says that it is {size:,} bytes long, of {most_bytes:,} at most")
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=most_bytes)
    except zstandard.ZstdError as error:
        raise IntegrityError(f"it is no Zstandard frame: {error}") from error
