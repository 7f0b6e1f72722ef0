"""The table of one run of the bench: what was measured, beside what it is compared with, as a ratio."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import msgspec
import psutil

from tests.bench.ours import Ours
from tests.bench.plain import ByHand

GIB = 1 << 30


class Measurement(msgspec.Struct, frozen=True):
    """One kind of store: the engine, the way by hand, and the limits of the machine."""

    place: str
    ours: Ours
    by_hand: ByHand
    discard_seconds: float
    """`criu dump --stream` into a reader that throws everything away."""
    write_seconds: float
    """The store alone, for the bytes that the first generation stored."""


def table(measurements: list[Measurement], mebibytes: int) -> str:
    """Markdown: one row for each figure, one column for each store."""
    heads = [one.place for one in measurements]
    rows = [
        ("notice → committed, first generation", [_seconds(m.ours.first.committed_seconds) for m in measurements]),
        (
            "… `criu dump` to a folder + `tar` + `zstd -1 -T0` + upload",
            [_seconds(m.by_hand.committed_seconds) for m in measurements],
        ),
        (
            "**… by hand ÷ ours**",
            [_ratio(m.by_hand.committed_seconds, m.ours.first.committed_seconds) for m in measurements],
        ),
        (
            "… `criu dump --stream` thrown away + the store's own write time",
            [_seconds(_limit(m)) for m in measurements],
        ),
        ("**… ours ÷ that limit** (aim: at most 1.5)", [_ratio(_first(m), _limit(m)) for m in measurements]),
        ("stored, first generation", [_bytes(m.ours.first.stored_bytes) for m in measurements]),
        ("… `tar.zst` by hand", [_bytes(m.by_hand.packed_bytes) for m in measurements]),
        (
            "notice → committed, second generation, 5 % of the pages changed, scattered",
            [_seconds(m.ours.second.committed_seconds) for m in measurements],
        ),
        ("stored, second generation", [_bytes(m.ours.second.stored_bytes) for m in measurements]),
        (
            "**… second ÷ first generation** (aim: at most 10 %)",
            [f"{m.ours.second.stored_bytes / m.ours.first.stored_bytes:.1%}" for m in measurements],
        ),
        ("bind → first instruction", [_seconds(m.ours.restore_seconds) for m in measurements]),
        ("… `criu restore` from a warm folder", [_seconds(m.by_hand.restore_seconds) for m in measurements]),
        (
            "**… ours ÷ that**",
            [_ratio(m.ours.restore_seconds, m.by_hand.restore_seconds) for m in measurements],
        ),
        ("frozen, `--leave-running`, first generation", [_seconds(m.ours.first.frozen_seconds) for m in measurements]),
        (
            "CPU seconds per GiB, first generation",
            [f"{m.ours.first.cpu_seconds / (m.ours.first.read_bytes / GIB):.2f}" for m in measurements],
        ),
        (
            "CPU seconds per GiB, second generation with its return",
            [f"{m.ours.second.cpu_seconds / (m.ours.second.read_bytes / GIB):.2f}" for m in measurements],
        ),
        ("peak memory of our processes", [_bytes(m.ours.first.peak_bytes) for m in measurements]),
    ]
    lines = [f"| {mebibytes} MiB, half of every page compressible | {' | '.join(heads)} |"]
    lines += ["|---|" + "---:|" * len(heads)]
    lines += [f"| {name} | {' | '.join(values)} |" for name, values in rows]
    return "\n".join(lines)


def machine() -> str:
    """The machine that it was measured on, in one line."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in cpuinfo.splitlines() if line.startswith("model name")), "?")
    memory = _bytes(psutil.virtual_memory().total)
    return f"{os.cpu_count()} x {model}, {memory} of memory, Linux {platform.release().split('-')[0]}"


def _first(measurement: Measurement) -> float:
    return measurement.ours.first.committed_seconds


def _limit(measurement: Measurement) -> float:
    return measurement.discard_seconds + measurement.write_seconds


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _ratio(above: float, below: float) -> str:
    return f"**{above / below:.2f}**"


def _bytes(value: int) -> str:
    return f"{value / GIB:.2f} GiB" if value >= GIB else f"{value / (1 << 20):.0f} MiB"
