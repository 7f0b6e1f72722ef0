"""Formatting and parsing of sizes and durations for users. JSON output has raw seconds and bytes instead."""

from __future__ import annotations

import re

from cedana_sched.model.errors import UsageError

_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
ABSENT = "-"


def format_size(count: float) -> str:
    """Format bytes with three significant digits: `0 B`, `17.3 MiB`, `2.00 GiB`."""
    value, unit = float(count), _SIZE_UNITS[0]
    for unit in _SIZE_UNITS:  # the loop ends at the result's unit
        if value < 1_000 or unit == _SIZE_UNITS[-1]:
            break
        value /= 1_024
    if unit == "B":
        return f"{value:.0f} B"
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def format_rate(count: float, seconds: float) -> str:
    """Format bytes per second, or `-` if no time has passed."""
    return f"{format_size(count / seconds)}/s" if seconds > 0 else ABSENT


def format_duration(seconds: float | None) -> str:
    """Format a duration with at most two units: `350ms`, `4.2s`, `3m05s`, `2h15m`, `3d4h`; `-` for None."""
    if seconds is None:
        return ABSENT
    if seconds < 1:
        return f"{max(seconds, 0) * 1_000:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 10 else _format_whole_seconds(round(seconds))


def format_age(since: float | None, now: float) -> str:
    """Format the time since `since` in whole units: `0s`, `42s`, `3m05s`; `-` for None."""
    return ABSENT if since is None else _format_whole_seconds(max(round(now - since), 0))


def _format_whole_seconds(seconds: int) -> str:
    if seconds < _MINUTE:
        return f"{seconds}s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE}m{seconds % _MINUTE:02d}s"
    if seconds < _DAY:
        return f"{seconds // _HOUR}h{seconds % _HOUR // _MINUTE:02d}m"
    return f"{seconds // _DAY}d{seconds % _DAY // _HOUR}h"


def format_number(value: float) -> str:
    """Format a number without needless decimals: `2`, `0.5`."""
    return f"{value:g}"


def parse_duration(field: str, text: str) -> float:
    """Parse `90`, `90s`, `5m`, `1h30m` or `2d` into seconds.

    Raises:
        UsageError: the text has another form, or is a duration of zero.
    """
    match = _DURATION.fullmatch(text.strip())
    if not text.strip() or match is None:
        raise UsageError(field, text, "is no duration", remedy="write 90s, 5m, 1h30m or 2d")
    days, hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
    total = days * _DAY + hours * _HOUR + minutes * _MINUTE + seconds
    if total <= 0:
        raise UsageError(field, text, "is no time at all", remedy="write a duration above zero, such as 30s")
    return total
