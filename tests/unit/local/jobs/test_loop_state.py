"""The book of jobs: what it forgets."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cedana_sched.local.jobs import loop_state
from cedana_sched.local.jobs.job import JobPhase, Run
from cedana_sched.local.jobs.loop_state import Draft, LoopState
from tests.unit.local.jobs.job_builders import job


def test_a_long_life_does_not_fill_the_memory_with_ended_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_state, "ENDED_JOBS_KEPT", 2)
    held = LoopState()
    for number in range(5):
        draft = Draft(held, now=float(number))
        run = Run(uid=f"run-{number}", index=0, attempt=1)
        draft.put(replace(job(f"job-{number}"), phase=JobPhase.SUCCEEDED, ended_at=float(number), runs=(run,)))
        draft.put(job("lives"))
        held.apply(draft)
    assert sorted(held.jobs) == ["job-3", "job-4", "lives"]
    assert (held.job_uid_of_run("run-0"), held.job_uid_of_run("run-4")) == (None, "job-4")
