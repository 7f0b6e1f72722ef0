"""What was measured of preemptions, as Markdown: who waits how long, and what the time goes into."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

import msgspec

from tests.bench.preemption import STEPS, Timeline

NOTHING = "-"
"""What was not measured: a run that is interrupted keeps what it has."""


class Measured(msgspec.Struct, frozen=True):
    """One preemption.

    Args:
        scheduler: its name.
        places: how many pods had to go.
        victim: what it does at SIGTERM.
        protected: whether it asked for protection.
        timeline: what happened when.
    """

    scheduler: str
    places: int
    victim: str
    protected: bool
    timeline: Timeline


def report(measured: Sequence[Measured], schedulers: Sequence[str], victims: Sequence[str]) -> str:
    """All tables, for each number of victims: the schedulers side by side, then each on its own."""
    parts = []
    for places in sorted({one.places for one in measured}):
        cases = [one for one in measured if one.places == places]
        shown = [name for name in schedulers if any(one.scheduler == name for one in cases)]
        parts += [f"## {places} pods have to go", _side_by_side(cases, shown, victims)]
        for name in shown:
            parts += [f"### {name}, step by step", _steps([c for c in cases if c.scheduler == name], victims)]
    return "\n\n".join(parts)


def _side_by_side(cases: Sequence[Measured], schedulers: Sequence[str], victims: Sequence[str]) -> str:
    heads = [f"{victim}: {which}" for victim in victims for which in ("without us", "with us", "difference")]
    lines = [f"| seconds from ml's submission until its pods are Running | {' | '.join(heads)} |"]
    lines += ["|---|" + "---:|" * len(heads)]
    for name in schedulers:
        cells = []
        for victim in victims:
            alone, ours = (_values(cases, name, victim, "running", protected=us) for us in (False, True))
            cells += [_with_range(alone), _with_range(ours), _difference(alone, ours)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _steps(cases: Sequence[Measured], victims: Sequence[str]) -> str:
    columns = [(victim, protected) for victim in victims for protected in (False, True)]
    heads = [f"{victim}: {'with' if protected else 'without'} us" for victim, protected in columns]
    lines = [f"| seconds after ml's submission, median | {' | '.join(heads)} |", "|---|" + "---:|" * len(heads)]
    (name,) = {case.scheduler for case in cases}
    for step, words in STEPS.items():
        found = [_values(cases, name, victim, step, protected=protected) for victim, protected in columns]
        medians = [f"{statistics.median(values):.2f}" if values else NOTHING for values in found]
        lines.append(f"| {words} | {' | '.join(medians)} |")
    return "\n".join(lines)


def _values(cases: Sequence[Measured], scheduler: str, victim: str, step: str, *, protected: bool) -> list[float]:
    def of_the_case() -> Iterator[Timeline]:
        for one in cases:
            if (one.scheduler, one.victim, one.protected) == (scheduler, victim, protected):
                yield one.timeline

    return [timeline[step] for timeline in of_the_case() if step in timeline]


def _with_range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else NOTHING


def _difference(alone: Sequence[float], ours: Sequence[float]) -> str:
    return f"**{statistics.median(ours) - statistics.median(alone):+.1f}**" if alone and ours else NOTHING
