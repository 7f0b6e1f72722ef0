"""What decoding raises for bytes that anybody may have written: whoever reads the store treats all of it as damage."""

from __future__ import annotations

import msgspec

from cedana_sched.model.errors import UsageError

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError)
"""msgspec has no error of its own for text that is no UTF-8; an identity that is none is a UsageError."""
