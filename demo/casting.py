"""Selection of the demo's workloads: GROMACS and XGBoost, or NumPy's simulation if they cannot be installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workloads.catalog import WORKLOADS
from workloads.packages import PackageError
from workloads.workload import Workload

STAND_IN = "numpy"


@dataclass(frozen=True)
class Cast:
    """The demo's workloads: the simulation that is preempted, and the training that preempts it."""

    simulation: Workload
    training: Workload


def choose(say: Callable[[str], None], wanted: tuple[str, str] = ("gromacs", "xgboost")) -> Cast:
    """Install missing packages; report a workload that cannot be installed, and replace it by the stand-in.

    Raises:
        PackageError: the stand-in cannot be installed either.
    """
    simulation, training = (_install(WORKLOADS[name], say) for name in wanted)
    return Cast(simulation, training)


def _install(workload: Workload, say: Callable[[str], None]) -> Workload:
    missing = workload.missing()
    if missing:
        say(f"installing {', '.join(missing)} for {workload.title}")
    try:
        workload.install()
    except PackageError as error:
        if workload.name == STAND_IN:
            raise
        stand_in = WORKLOADS[STAND_IN]
        say(f"{error}; {stand_in.title} stands in for {workload.title}")
        return _install(stand_in, say)
    return workload
