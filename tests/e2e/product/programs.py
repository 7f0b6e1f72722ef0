"""Real programs, and whether a run of one that was interrupted is as good as one that was not."""

from __future__ import annotations

import re

from tests.e2e.product.following import Following

_STEP = re.compile(r"(\d+) (?:steps|rounds)")


def run(workload: str) -> tuple[str, ...]:
    """A command of the image `programs`: one of `workloads/`, by its name."""
    return "python3", "/srv/run.py", workload


def assert_same_work(interrupted: Following, reference: Following) -> None:
    """Both have ended in the very same bits, and no step was said twice."""
    assert _results(interrupted) == _results(reference)
    assert len(_results(interrupted)) >= 2
    steps = [int(found[1]) for line in interrupted.lines(0) if (found := _STEP.fullmatch(line))]
    assert steps == sorted(set(steps))


def _results(following: Following) -> list[str]:
    lines = map(str.strip, following.lines(0))
    return [line for line in lines if line.startswith("result ")]
