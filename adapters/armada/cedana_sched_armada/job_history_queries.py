"""History of jobs from Armada: submissions, and jobs preempted together."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing

from armada_client.armada.submit_pb2 import Job

from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.errors import ArmadaError
from cedana_sched_armada.events import JobSet, Kind, id_before, submission_time_of_job
from cedana_sched_armada.job_of_pod import Gang, gang_id
from cedana_sched_armada.ledger import OpenPreemption


async def preempted_since(server: ArmadaClient, case: OpenPreemption) -> set[str]:
    """Return the jobs preempted with the case or after it."""
    found = {case.job}
    async for event in server.events(case.job_set, case.since, watch=False):
        if event.kind is Kind.PREEMPTED:
            found.add(event.job)
    return found


async def fetch_submissions_of_jobs(server: ArmadaClient, job_set: JobSet, jobs: Collection[str]) -> dict[str, Job]:
    """Return the submissions of jobs that were submitted together, by job id.

    Raises:
        ArmadaError: Armada no longer has one of them.
    """
    details = await server.job_details(jobs)
    found = {job: one.job_spec for job, one in details.items() if one.HasField("job_spec")}
    missing = set(jobs) - found.keys()
    if missing:  # Armada's database lags, or was pruned
        async with aclosing(server.events(job_set, _position_before_submission(min(missing)), watch=False)) as events:
            async for event in events:
                if event.submitted is not None and event.job in missing:
                    found[event.job] = event.submitted
                    if missing <= found.keys():
                        break
    if missing - found.keys():
        message = f"Armada does not know what was submitted as job {min(missing - found.keys())}"
        raise ArmadaError(message, remedy="see whether its lookout database and its event store are well")
    return found


async def gang_members(server: ArmadaClient, job_set: JobSet, gang: Gang, job: str, cardinality: int) -> set[str]:
    """Return all jobs of the gang of `job`, which were submitted with it."""
    members: set[str] = set()
    async with aclosing(server.events(job_set, _position_before_submission(job), watch=False)) as events:
        async for event in events:
            if event.submitted is not None and gang_id(dict(event.submitted.annotations)) == gang.id:
                members.add(event.job)
                if len(members) == cardinality:
                    break
    return members


def _position_before_submission(job: str) -> str:
    return id_before(submission_time_of_job(job))
