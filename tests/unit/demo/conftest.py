"""The story of a demo as the engine's watch stream would tell it."""

import msgspec
import pytest

from cedana_sched.local.views import CheckpointView, JobView, RestoreView, RunView

BEGAN = 1_700_000_000.0
_SNAPSHOT = "bio/gromacs/0/main@1"


def a_job(name: str, group: str, cpus: float, **changes: object) -> JobView:
    job = JobView(
        uid=f"uid-{name}", name=name, namespace=group, id=name, group=group, phase="Queued", why="", argv=("true",),
        priority=0, cpus=cpus, memory_bytes=1 << 29, replicas=1, submitted_at=BEGAN, started_at=None, ended_at=None,
        preemptions=0, work_saved_seconds=0.0, exit_code=None, signal=None, stdout="out", stderr="out",
    )  # fmt: skip
    return msgspec.structs.replace(job, **changes)


def a_checkpoint(**changes: object) -> CheckpointView:
    notice = CheckpointView(
        uid="c1", step="Freezing", phase="Pending", reason="Reclaimed", preemptor="xgboost", created_at=BEGAN + 7.1,
        deadline=BEGAN + 600,
    )  # fmt: skip
    return msgspec.structs.replace(notice, **changes)


@pytest.fixture
def story() -> list[JobView]:
    """Every state of both jobs, in order."""
    simulation = a_job("gromacs", "bio", 2.0)
    running = msgspec.structs.replace(simulation, phase="Running", started_at=BEGAN + 0.1)
    training = a_job("xgboost", "ml", 1.0, submitted_at=BEGAN + 7.0)
    frozen = a_checkpoint(step="Dumping", phase="InProgress", frozen_at=BEGAN + 7.12, read_bytes=10 << 20)
    committed = msgspec.structs.replace(
        frozen, step="Ready", phase="Ready", committed_at=BEGAN + 7.5, read_bytes=40 << 20, stored_bytes=10 << 20,
        zero_bytes=20 << 20, snapshot=_SNAPSHOT,
    )  # fmt: skip
    restore = RestoreView(uid="r1", step="Staging", created_at=BEGAN + 16.0, snapshot=_SNAPSHOT)
    restored = msgspec.structs.replace(restore, step="Running", running_at=BEGAN + 16.25)
    runs = (
        RunView("run1", 0, BEGAN + 0.1, BEGAN + 7.5, None, None, None, "SIGKILL"),
        RunView("run2", 0, BEGAN + 16.25, None, _SNAPSHOT, None, None, None),
    )
    suspended = msgspec.structs.replace(
        running, phase="Suspended", why="waits for 2 cpus", checkpoint=committed, preemptions=1, work_saved_seconds=7.4
    )
    again = msgspec.structs.replace(suspended, phase="Running", why="", restore=restored, runs=runs)
    at_work = msgspec.structs.replace(training, phase="Running", started_at=BEGAN + 7.6)
    return [
        simulation,
        running,
        training,
        msgspec.structs.replace(running, phase="Preempting", checkpoint=a_checkpoint()),
        msgspec.structs.replace(running, phase="Preempting", checkpoint=frozen),
        suspended,
        at_work,
        msgspec.structs.replace(at_work, phase="Succeeded", ended_at=BEGAN + 16, exit_code=0),
        msgspec.structs.replace(suspended, phase="Starting", restore=restore),
        again,
        msgspec.structs.replace(again, phase="Succeeded", ended_at=BEGAN + 31, exit_code=0),
    ]
