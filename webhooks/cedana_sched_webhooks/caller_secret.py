"""The secret that authenticates callers, stored in a Secret that replicas share."""

from __future__ import annotations

import base64
from typing import Final

from cedana_sched.model.segments import is_segment
from cedana_sched.service.callers import SHORTEST_SECRET
from cedana_sched_webhooks.certificate_secret import Secret

CALLERS: Final = "callers.key"
"""Key in the Secret's `data`; emptying its value rotates the secret."""


def caller_secret_in(secret: Secret | None) -> str | None:
    """Return the stored caller secret; None if it is absent, malformed or too short."""
    try:
        found = base64.b64decode(secret.data.get(CALLERS, "") if secret is not None else "", validate=True).decode()
    except ValueError:
        return None
    return found if is_segment(found) and len(found) >= SHORTEST_SECRET else None


def encoded(text: str) -> str:
    """Encode text for a Secret's `data` (base64)."""
    return base64.b64encode(text.encode()).decode()
