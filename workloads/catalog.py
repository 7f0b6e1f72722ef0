"""All workloads by name: the way in for the demo, the tests and the bench."""

from __future__ import annotations

from workloads.connection.workload import Connection
from workloads.gromacs.workload import Gromacs
from workloads.memory.workload import Memory
from workloads.mpi.workload import Mpi
from workloads.numpy_dynamics.workload import NumpyDynamics
from workloads.postgresql.workload import Postgresql
from workloads.redis.workload import Redis
from workloads.threads.workload import Threads
from workloads.timers.workload import Timers
from workloads.workload import Workload
from workloads.xgboost.workload import XGBoost

_ALL: tuple[Workload, ...] = (
    Gromacs(),
    XGBoost(),
    NumpyDynamics(),
    Mpi(),
    Threads(),
    Connection("tcp"),
    Connection("unix"),
    Connection("pipe"),
    Postgresql(),
    Redis(),
    Memory(),
    Timers(),
)
WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
