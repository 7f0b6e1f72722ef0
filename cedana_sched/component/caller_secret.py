"""The secret that authenticates callers, stored in a Secret that replicas share."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

from cedana_sched.component.callers import SHORTEST_SECRET
from cedana_sched.model.path_segment_validation import is_segment

CALLERS: Final = "callers.key"
"""Key in the Secret's `data`; emptying its value rotates the secret."""


def caller_secret_in(data: Mapping[str, str]) -> str | None:
    """Return the caller secret of a Secret's `data`; None if it is absent, malformed or too short."""
    try:
        found = base64.b64decode(data.get(CALLERS, ""), validate=True).decode()
    except ValueError:
        return None
    return found if is_segment(found) and len(found) >= SHORTEST_SECRET else None


def encode_base64(text: str) -> str:
    """Encode text for a Secret's `data` (base64)."""
    return base64.b64encode(text.encode()).decode()
