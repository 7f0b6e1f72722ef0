"""All workloads by name: the way in for the demo, the tests and the bench."""

from __future__ import annotations

from workloads.gromacs.workload import Gromacs
from workloads.workload import Workload
from workloads.xgboost.workload import XGBoost

_ALL: tuple[Workload, ...] = (Gromacs(), XGBoost())
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
