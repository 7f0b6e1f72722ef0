"""Find gaps and repetitions in a sequence that a workload has logged. Called by the checks of the services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_NAMED = 5


def sequence_faults(what: str, numbers: Sequence[int], total: int) -> list[str]:
    """Say which of 1..`total` are missing, repeated, foreign or out of order in `numbers`; nothing when all is well."""
    counts = Counter(numbers)
    expected = range(1, total + 1)
    found = {
        "missing": [n for n in expected if n not in counts],
        "repeated": sorted(n for n, count in counts.items() if count > 1),
        "never sent": sorted(n for n in counts if n not in expected),
    }
    faults = [f"{what}: {word} {_some(bad)}" for word, bad in found.items() if bad]
    if not faults and list(numbers) != list(expected):
        faults.append(f"{what}: complete but out of order")
    return faults


def _some(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:_NAMED]))
    return named if len(numbers) <= _NAMED else f"{named} and {len(numbers) - _NAMED} more"
