"""Jobs, signals and configurations for the engine's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cedana_sched.local.configuration import Configuration
from cedana_sched.local.jobs.job import Job
from cedana_sched.local.jobs.submission import create_job_description
from cedana_sched.local.scheduler.resources import Resources
from cedana_sched.local.views import Submission

MACHINE = Resources(4000, 8 << 30)

TWO_GROUPS = """
[[groups]]
name = "bio"
nominalQuota = {cpu = 2, memory = "4Gi"}
preemption = {reclaimWithinCohort = "Any", withinClusterQueue = "LowerPriority"}
optIn = true

[[groups]]
name = "ml"
nominalQuota = {cpu = 2, memory = "4Gi"}
preemption = {reclaimWithinCohort = "Any", withinClusterQueue = "LowerPriority"}
"""


def configuration(text: str = TWO_GROUPS) -> Configuration:
    return Configuration.parse(text, MACHINE, "groups.toml")


def submission(group: str = "bio", **fields: Any) -> Submission:
    return Submission(**{"argv": ("/bin/sim", "--steps", "9"), "group": group, **fields})


def job(uid: str = "job-1", *, at: float = 100.0, **fields: Any) -> Job:
    described = create_job_description(submission(**fields), configuration(), uid=uid, now=at, outputs=Path("/outputs"))
    return Job(description=described)
