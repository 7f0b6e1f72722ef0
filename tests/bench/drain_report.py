"""What was measured of drains, as Markdown: seconds with and without the product, and their ratio."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec


class Drain(msgspec.Struct, frozen=True):
    """One drain of a node.

    Args:
        pods: how many ran there.
        program: what they do at SIGTERM.
        protected: whether their namespace was.
        returned: seconds until `kubectl drain` returned.
        running: seconds until as many pods were ready on another node.
    """

    pods: int
    program: str
    protected: bool
    returned: float
    running: float


def report(drains: Sequence[Drain]) -> str:
    """One row for each program and moment: medians with their range, and the ratios of neighbouring drains."""
    (pods,) = {one.pods for one in drains}
    lines = [f"| a node with {pods} pods, seconds | without us | with us | ratio |", "|---|---:|---:|---:|"]
    for program in dict.fromkeys(one.program for one in drains):
        of_program = [one for one in drains if one.program == program]
        alone = [one for one in of_program if not one.protected]
        ours = [one for one in of_program if one.protected]
        lines += [
            _row(f"{program}: `kubectl drain` returns", [d.returned for d in alone], [d.returned for d in ours]),
            _row(f"{program}: all pods run elsewhere", [d.running for d in alone], [d.running for d in ours]),
        ]
    return "\n".join(lines)


def _row(what: str, alone: Sequence[float], ours: Sequence[float]) -> str:
    ratios = [with_us / without for without, with_us in zip(alone, ours, strict=True)]
    return f"| {what} | {_with_range(alone, 1)} | {_with_range(ours, 1)} | **{_with_range(ratios, 2)}** |"


def _with_range(values: Sequence[float], digits: int) -> str:
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"
