"""The table of one run of the bench: what was measured, beside what it is compared with, as a ratio within a round."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from tests.bench.ours import Generation, Ours
from tests.bench.plain import ByHand

GIB = 1 << 30


class Round(msgspec.Struct, frozen=True):
    """What one round measured on one store, everything one after the other."""

    ours: Ours
    sealed: Ours
    """Likewise, with a key file."""
    by_hand: ByHand
    discard_seconds: float
    """`criu dump --stream` into a reader that throws everything away."""
    write_seconds: float
    """The store alone, for the bytes that the first generation stored."""

    @property
    def limit_seconds(self) -> float:
        """What the machine can do at best, to the commit."""
        return self.discard_seconds + self.write_seconds


class Measurement(msgspec.Struct, frozen=True):
    """All rounds on one kind of store."""

    place: str
    rounds: list[Round]


class _Row(msgspec.Struct, frozen=True):
    name: str
    value: Callable[[Round], float]
    shape: Callable[[float], str]


def _rows() -> Iterator[_Row]:
    yield _Row("notice → committed, first generation", _first, _seconds)
    yield _Row(
        "… `criu dump` to a folder + `tar` + `zstd -1 -T0` + upload", lambda r: r.by_hand.committed_seconds, _seconds
    )
    yield _Row("**… by hand ÷ ours**", lambda r: r.by_hand.committed_seconds / _first(r), _ratio)
    yield _Row("… `criu dump --stream` thrown away + the store's own write time", lambda r: r.limit_seconds, _seconds)
    yield _Row("**… ours ÷ that limit** (aim: at most 1.5)", lambda r: _first(r) / r.limit_seconds, _ratio)
    yield _Row("**… sealed ÷ not sealed**", lambda r: r.sealed.first.committed_seconds / _first(r), _ratio)
    yield _Row("stored, first generation", lambda r: r.ours.first.stored_bytes, _bytes)
    yield _Row("… `tar.zst` by hand", lambda r: r.by_hand.packed_bytes, _bytes)
    yield _Row(
        "notice → committed, second generation, 5 % of the pages changed, scattered",
        lambda r: r.ours.second.committed_seconds,
        _seconds,
    )
    yield _Row(
        "**… sealed ÷ not sealed**",
        lambda r: r.sealed.second.committed_seconds / r.ours.second.committed_seconds,
        _ratio,
    )
    yield _Row("stored, second generation", lambda r: r.ours.second.stored_bytes, _bytes)
    yield _Row(
        "**… second ÷ first generation** (aim: at most 10 %)",
        lambda r: r.ours.second.stored_bytes / r.ours.first.stored_bytes,
        _percent,
    )
    yield _Row("bind → first instruction", lambda r: r.ours.restore_seconds, _seconds)
    yield _Row("… `criu restore` from a warm folder", lambda r: r.by_hand.restore_seconds, _seconds)
    yield _Row("**… ours ÷ that**", lambda r: r.ours.restore_seconds / r.by_hand.restore_seconds, _ratio)
    yield _Row("**… sealed ÷ not sealed**", lambda r: r.sealed.restore_seconds / r.ours.restore_seconds, _ratio)
    yield _Row("frozen, `--leave-running`, first generation", lambda r: r.ours.first.frozen_seconds, _seconds)
    yield _Row("CPU seconds per GiB, first generation", lambda r: _cost(r.ours.first), _plain)
    yield _Row("… sealed", lambda r: _cost(r.sealed.first), _plain)
    yield _Row("CPU seconds per GiB, second generation with its restore", lambda r: _cost(r.ours.second), _plain)
    yield _Row("… sealed", lambda r: _cost(r.sealed.second), _plain)
    yield _Row("peak memory of our processes", lambda r: r.ours.first.peak_bytes, _bytes)


def table(measurements: list[Measurement], mebibytes: int) -> str:
    """Markdown: one row for each figure, one column for each store; the median of the rounds, and their spread."""
    heads = [one.place for one in measurements]
    lines = [f"| {mebibytes} MiB, half of every page compressible | {' | '.join(heads)} |"]
    lines += ["|---|" + "---:|" * len(heads)]
    for row in _rows():
        cells = [_spread([row.value(one) for one in measurement.rounds], row.shape) for measurement in measurements]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float], shape: Callable[[float], str]) -> str:
    middle = shape(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({shape(min(values)).strip('*')} to {shape(max(values)).strip('*')})"


def machine() -> str:
    """The machine that it was measured on, in one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "?")
    memory = _bytes(psutil.virtual_memory().total)
    return f"{os.cpu_count()} x {model}, {memory} of memory, Linux {platform.release().split('-')[0]}"


def _first(measured: Round) -> float:
    return measured.ours.first.committed_seconds


def _cost(generation: Generation) -> float:
    return generation.cpu_seconds / (generation.read_bytes / GIB)


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _ratio(value: float) -> str:
    return f"**{value:.2f}**"


def _percent(value: float) -> str:
    return f"{value:.1%}"


def _plain(value: float) -> str:
    return f"{value:.2f}"


def _bytes(value: float) -> str:
    return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / (1 << 20):.0f} MiB"
