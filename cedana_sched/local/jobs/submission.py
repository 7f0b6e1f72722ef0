"""Validation of submissions: an error has the invalid field, its value and a remedy."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from cedana_sched.local.configuration import Configuration, GroupConfiguration
from cedana_sched.local.jobs.environment_validation import require_valid_environment
from cedana_sched.local.jobs.job import JobDescription
from cedana_sched.local.quantities import parse_cpus, parse_memory
from cedana_sched.local.scheduler.reasons import why_never_fitting
from cedana_sched.local.scheduler.resources import Resource, Resources, in_words
from cedana_sched.local.views import Submission
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE, validate_name
from cedana_sched.model.policy import CheckpointPolicy, OnVolumeChange

MOST_REPLICAS = 1024
_SHORT_UID = 6


def create_job_description(
    submission: Submission, configuration: Configuration, *, uid: str, now: float, outputs: Path
) -> JobDescription:
    """Return the description of the submitted job. Output without a path of its own goes to `outputs/UID/`.

    Raises:
        UsageError: a field is invalid; the error names the first one.
    """
    group = configuration.group(submission.group)
    if not submission.argv or not submission.argv[0]:
        raise UsageError("argv", list(submission.argv), "names no command", remedy="write it after '--'")
    name = _job_name_of(submission, uid)
    require_valid_environment(submission.env)
    request = Resources(_cpus(submission.cpus), _memory(submission.memory))
    _check_replicas(submission.replicas)
    _check_terminal(submission)
    _check_quota(submission, configuration, request)
    return JobDescription(
        uid=uid,
        namespace=group.namespace,
        name=name,
        id=_checkpoint_id(submission, group, name),
        group=group.name,
        argv=submission.argv,
        env=dict(submission.env),
        cwd=_require_absolute_path("cwd", submission.cwd),
        user=submission.user,
        request=request,
        priority=submission.priority,
        replicas=submission.replicas,
        policy=_policy_of(submission, group.checkpoint_policy),
        stdout=_require_absolute_path("stdout", submission.stdout) or str(outputs / uid / "stdout"),
        stderr=_require_absolute_path("stderr", submission.stderr) or str(outputs / uid / "stderr"),
        submitted_at=now,
        tty=submission.tty,
    )


def _job_name_of(submission: Submission, uid: str) -> str:
    if submission.name is not None:
        return validate_name("name", submission.name)
    program = re.sub(r"[^A-Za-z0-9]+", "-", PurePosixPath(submission.argv[0]).name).strip("-")[:40].strip("-")
    return f"{program or 'job'}-{uid[-_SHORT_UID:]}"


def _checkpoint_id(submission: Submission, group: GroupConfiguration, name: str) -> str | None:
    """Return `--id`, or CEDANA_CHECKPOINT of the job's environment, or the job's name if the group opts in."""
    variable = submission.env.get(CHECKPOINT_VARIABLE)
    if submission.id is not None and variable is not None and submission.id != variable:
        remedy = f"leave one of them out; {CHECKPOINT_VARIABLE} is {variable!r}"
        raise UsageError("id", submission.id, f"is not what {CHECKPOINT_VARIABLE} says", remedy=remedy)
    if submission.id is not None:
        return validate_name("id", submission.id)
    if variable is not None:
        return validate_name(f"env.{CHECKPOINT_VARIABLE}", variable)
    return name if group.opt_in else None


def _cpus(text: str) -> int:
    amount = parse_cpus("cpus", text)
    if amount <= 0:
        raise UsageError("cpus", text, "is not above zero", remedy="request at least 0.001")
    return amount


def _memory(text: str) -> int:
    amount = parse_memory("memory", text)
    if amount <= 0:
        raise UsageError("memory", text, "is not above zero", remedy="request what the job needs, such as 512Mi")
    return amount


def _check_replicas(replicas: int) -> None:
    if not 1 <= replicas <= MOST_REPLICAS:
        raise UsageError("replicas", replicas, "is out of range", remedy=f"request 1 to {MOST_REPLICAS}")


def _check_terminal(submission: Submission) -> None:
    if submission.tty and submission.replicas > 1:
        remedy = "submit one replica, or leave --tty out"
        raise UsageError("replicas", submission.replicas, "cannot share one terminal", remedy=remedy)
    if submission.tty and submission.stderr is not None:
        remedy = "leave it out: a terminal's output is one stream, and goes to stdout"
        raise UsageError("stderr", submission.stderr, "has no stream in a job with a terminal", remedy=remedy)


def _check_quota(submission: Submission, configuration: Configuration, request: Resources) -> None:
    problem = why_never_fitting(configuration.cohort, submission.group, request.multiplied_by(submission.replicas))
    if problem is None or problem.resource is None:
        return
    cpu = problem.resource is Resource.CPU
    field, value = ("cpus", submission.cpus) if cpu else ("memory", submission.memory)
    each = f" for each of {submission.replicas} replicas" if submission.replicas > 1 else ""
    most = in_words(problem.resource, problem.most)
    remedy = f"request at most {most} in all, or raise the group's nominalQuota or borrowingLimit"
    raise UsageError(
        field, value, f"{each.strip()} is more than group {submission.group!r} can ever have".strip(), remedy=remedy
    )


def _require_absolute_path(field: str, path: str | None) -> str | None:
    if path is not None and not PurePosixPath(path).is_absolute():
        raise UsageError(field, path, "is no absolute path", remedy="write it from the root: /home/…")
    return path


def _policy_of(submission: Submission, policy: CheckpointPolicy) -> CheckpointPolicy:
    """Return the group's policy with what the submission overrides."""
    if submission.on_volume_change is not None:
        policy = policy.model_copy(update={"on_volume_change": _on_volume_change(submission.on_volume_change)})
    if submission.deadline_seconds is None:
        return policy
    try:
        override = {"deadline_seconds": submission.deadline_seconds}
        return CheckpointPolicy.model_validate(policy.model_dump() | override)
    except ValidationError as error:
        remedy = "give seconds above 0, at most one day (86400)"
        raise UsageError("deadline", submission.deadline_seconds, "is out of range", remedy=remedy) from error


def _on_volume_change(value: str) -> OnVolumeChange:
    try:
        return OnVolumeChange(value)
    except ValueError as error:
        remedy = f"give one of {', '.join(OnVolumeChange)}"
        raise UsageError("on-volume-change", value, "is no policy for files that ran ahead", remedy=remedy) from error
