"""Durations as Go writes and reads them, such as `1m30s`: of settings of Kubernetes and its schedulers."""

from __future__ import annotations

import re
from typing import Final

from cedana_sched.model.texts import truncate_text

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|us|µs|ns|s)")


def parse_go_duration(text: str) -> float:
    """Parse a duration that is not negative into seconds. Source: Go's `time.ParseDuration`.

    Raises:
        ValueError: it is none.
    """
    parts = list(_PART.finditer(text))
    if text == "0":
        return 0.0
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{truncate_text(text)!r} is no duration")
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
