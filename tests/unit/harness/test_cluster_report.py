"""The tables of a run in a cluster, also of one that was interrupted."""

from __future__ import annotations

from tests.bench.cluster_report import Measured, report

VICTIMS = ("ends at once",)


def measured(seconds: float, *, protected: bool, scheduler: str = "volcano") -> Measured:
    timeline = {"made": 0.1, "running": seconds}
    return Measured(scheduler=scheduler, places=1, victim=VICTIMS[0], protected=protected, timeline=timeline)


def rows(*cases: Measured) -> list[str]:
    return report(cases, ("volcano", "kueue"), VICTIMS).splitlines()


def test_schedulers_stand_side_by_side_with_what_we_cost() -> None:
    alone, ours = [measured(seconds, protected=False) for seconds in (1, 2, 3)], measured(5, protected=True)
    assert "| volcano | 2.0 (1.0 to 3.0) | 5.0 (5.0 to 5.0) | **+3.0** |" in rows(*alone, ours)


def test_a_run_that_was_interrupted_shows_what_it_has() -> None:
    shown = rows(measured(2, protected=False), measured(4, protected=True, scheduler="kueue"))
    assert "| volcano | 2.0 (2.0 to 2.0) | - | - |" in shown
    assert "| kueue | - | 4.0 (4.0 to 4.0) | - |" in shown
    assert "| **ml's pods are Running** | - | 4.00 |" in shown
