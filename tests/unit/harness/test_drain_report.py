"""The table of drains."""

from __future__ import annotations

from tests.bench.drain_report import Drain, report


def test_ratios_are_of_neighbours_and_have_their_range() -> None:
    drains = [
        Drain(6, "ends at SIGTERM", protected=False, returned=2.0, running=4.0),
        Drain(6, "ends at SIGTERM", protected=True, returned=5.0, running=4.0),
        Drain(6, "ignores SIGTERM", protected=False, returned=9.0, running=9.0),
        Drain(6, "ignores SIGTERM", protected=True, returned=4.5, running=9.0),
        Drain(6, "ends at SIGTERM", protected=False, returned=4.0, running=4.0),
        Drain(6, "ends at SIGTERM", protected=True, returned=6.0, running=8.0),
    ]
    assert report(drains).splitlines() == [
        "| a node with 6 pods, seconds | without us | with us | ratio |",
        "|---|---:|---:|---:|",
        "| ends at SIGTERM: `kubectl drain` returns | 3.0 (2.0 to 4.0) | 5.5 (5.0 to 6.0) | **2.00 (1.50 to 2.50)** |",
        "| ends at SIGTERM: all pods run elsewhere | 4.0 (4.0 to 4.0) | 6.0 (4.0 to 8.0) | **1.50 (1.00 to 2.00)** |",
        "| ignores SIGTERM: `kubectl drain` returns | 9.0 (9.0 to 9.0) | 4.5 (4.5 to 4.5) | **0.50 (0.50 to 0.50)** |",
        "| ignores SIGTERM: all pods run elsewhere | 9.0 (9.0 to 9.0) | 9.0 (9.0 to 9.0) | **1.00 (1.00 to 1.00)** |",
    ]
