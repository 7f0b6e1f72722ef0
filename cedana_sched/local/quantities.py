"""Parsers of quantities: `0.5` and `500m` cpus; `2Gi`, `500M` or plain bytes of memory."""

from __future__ import annotations

import re
from decimal import Decimal

from cedana_sched.model.errors import UsageError

_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([A-Za-z]*)")
_CPU_UNITS = {"": Decimal(1000), "m": Decimal(1)}
_MEMORY_UNITS = {
    "": 1,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_CPU_REMEDY = "write a number of cores such as 2, 0.5 or 500m, in steps of 0.001"
_MEMORY_REMEDY = "write bytes with an optional unit, such as 2Gi, 500M or 1073741824"


def parse_cpus(field: str, text: str | float) -> int:
    """Return thousandths of a core.

    Raises:
        UsageError: the text is invalid, or finer than a thousandth of a core.
    """
    amount = _parse(field, text, _CPU_UNITS, _CPU_REMEDY)
    if amount != amount.to_integral_value():
        raise UsageError(field, text, "is finer than a thousandth of a core", remedy=_CPU_REMEDY)
    return int(amount)


def parse_memory(field: str, text: str | float) -> int:
    """Return bytes; a fraction of a byte is truncated.

    Raises:
        UsageError: the text is invalid.
    """
    return int(_parse(field, text, {unit: Decimal(size) for unit, size in _MEMORY_UNITS.items()}, _MEMORY_REMEDY))


def _parse(field: str, text: str | float, units: dict[str, Decimal], remedy: str) -> Decimal:
    written = str(text).strip()
    if written.startswith("-"):
        raise UsageError(field, text, "is negative", remedy=remedy)
    match = _NUMBER.fullmatch(written)
    if match is None or match[2] not in units:
        raise UsageError(field, text, "is no amount", remedy=remedy)
    return Decimal(match[1]) * units[match[2]]
