"""How long tests wait for what should come: longer on machines that are slow or have much else to do."""

from __future__ import annotations

import os


def patient(seconds: float) -> float:
    """So long, times PATIENCE of the environment (1)."""
    return seconds * float(os.environ.get("PATIENCE") or 1)
