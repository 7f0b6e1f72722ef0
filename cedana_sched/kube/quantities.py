"""Kubernetes quantities: `500m`, `2`, `1.5Gi`, `1e3`."""

from __future__ import annotations

import functools
import math
import re
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?[0-9]+)|([KMGTPE]i|[numkMGTPE])?)")
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_FRACTIONS: Final = {"m": -3, "u": -6, "n": -9}


def parse_quantity(quantity: str) -> Decimal:
    """Parse a quantity; 0 if it is invalid, which an API server refuses."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        return Decimal(0)
    number, exponent, suffix = Decimal(match[1]), match[2], match[3] or ""
    if exponent is not None:
        return number.scaleb(int(exponent))
    if suffix in _FRACTIONS:
        return number.scaleb(_FRACTIONS[suffix])
    base = 1024 if suffix.endswith("i") else 1000
    return number * Decimal(base) ** _POWERS[suffix[:1].upper()]


@functools.lru_cache(maxsize=4096)
def parse_whole(quantity: str) -> int:
    """Parse a quantity, rounded up as by `Quantity.Value`."""
    return math.ceil(parse_quantity(quantity))


@functools.lru_cache(maxsize=4096)
def parse_thousandths(quantity: str) -> int:
    """Parse a quantity in thousandths, rounded up as by `Quantity.MilliValue`."""
    return math.ceil(parse_quantity(quantity) * 1000)
