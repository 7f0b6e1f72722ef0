"""The secret by which callers are known, as it stands in a Secret that replicas share."""

from __future__ import annotations

import base64
from typing import Final

from cedana_sched.model.segments import is_segment
from cedana_sched.service.callers import SHORTEST_SECRET
from cedana_sched_webhooks.certificate_secret import Secret

CALLERS: Final = "callers.key"
"""Where it stands in the Secret's `data`: whoever empties it gets another one."""


def caller_secret_in(secret: Secret | None) -> str | None:
    """None when there is none yet, or it is none that we would make, or use."""
    try:
        found = base64.b64decode(secret.data.get(CALLERS, "") if secret is not None else "", validate=True).decode()
    except ValueError:
        return None
    return found if is_segment(found) and len(found) >= SHORTEST_SECRET else None


def encoded(text: str) -> str:
    """As it stands in a Secret's `data`."""
    return base64.b64encode(text.encode()).decode()
