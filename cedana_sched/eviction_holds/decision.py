"""The decision on one eviction, in the words of its metric and of the user."""

from __future__ import annotations

import math
from typing import Final

import msgspec

NOT_HELD: Final = "not-yet-held"
"""Decision on an eviction without a PreemptionHold."""
UNHELD: Final = "nobody-holds"
"""Decision on an eviction that has waited long enough for a PreemptionHold."""
UNANNOUNCED_SECONDS: Final = 30.0
"""How long an eviction waits for a PreemptionHold before it proceeds as without us."""


class Decision(msgspec.Struct, frozen=True):
    """Allowed if `refused` is None; `word` is a metric label."""

    word: str
    refused: str | None = None


def decide_held_eviction(reason: str, left: float) -> Decision:
    """Refuse an eviction whose hold lasts `left` more seconds."""
    return Decision("held", _format_hold_message(reason, left))


def decide_unheld_eviction(waited_seconds: float) -> Decision:
    """Refuse an eviction without a hold until it has waited for `UNANNOUNCED_SECONDS`, then allow it."""
    left = UNANNOUNCED_SECONDS - waited_seconds
    if left > 0:
        return Decision(NOT_HELD, _format_hold_message("the coordinator has not taken the eviction up yet", left))
    return Decision(UNHELD)


def _format_hold_message(reason: str, left: float) -> str:
    return f"Held for checkpoint by cedana: {reason}, at most {math.ceil(left)} s more"
