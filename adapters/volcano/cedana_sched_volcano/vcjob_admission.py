"""vcjobs at CREATE: users are warned of policies that turn a preemption into a loss.

On request (`HARMLESS` on the job) the policies are rewritten. No job is ever refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypedDict

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched_volcano.objects import DEFAULT_QUEUE, SCHEDULER_NAME, TASK
from cedana_sched_volcano.pod_queues import is_protecting
from cedana_sched_volcano.vcjob_policies import find_preemption_losses, rewrite_policies
from cedana_sched_webhooks.admission import Answer, Request, Shape
from cedana_sched_webhooks.admission_types import Metadata, Template
from cedana_sched_webhooks.identity import is_without_id, replica_of
from cedana_sched_webhooks.json_patch import patch_operations

HARMLESS: Final = f"{names.GROUP}/rewrite-policies"
"""Annotation of a vcjob: `true` requests rewritten policies, so that preemptions lose nothing."""

MOST_TASKS: Final = 256
MOST_POLICIES: Final = 64
"""Per list; checks are quadratic. Volcano refuses two policies for one event, and there are ten events."""
MOST_CONTAINERS: Final = 1_024
"""In all tasks' templates."""
TOO_MANY: Final = (
    f"cedana: not looked at: more than {MOST_TASKS} tasks, {MOST_CONTAINERS} containers, or {MOST_POLICIES} policies"
)


class _Task(TypedDict, total=False):
    name: str | None
    replicas: int
    policies: list[dict[str, Any]] | None
    template: Template | None


class _Spec(TypedDict, total=False):
    queue: str | None
    schedulerName: str | None
    minAvailable: int | None
    maxRetry: int | None
    policies: list[dict[str, Any]] | None
    tasks: list[_Task] | None


class _Job(TypedDict, total=False):
    metadata: Metadata
    spec: _Spec


VCJOB: Final = Shape(_Job)


class VcjobAdmission:
    """Admission handler for vcjobs at CREATE.

    Args:
        queue: returns a Queue by its name; None if it does not exist or is not cached yet.
    """

    def __init__(self, queue: Callable[[str], PartialObject | None]) -> None:
        self._queue = queue

    async def answer(self, request: Request) -> Answer:
        """Return the warnings or the mutation for a job."""
        job = request.object
        if job is None:
            return Answer("not-ours")
        if _is_large(job["spec"]):
            return Answer("large", warnings=(TOO_MANY,))
        unclear = tuple(_identity_warnings(job))
        if not self._is_protected(job):
            return Answer("unclear", warnings=unclear) if unclear else Answer("not-ours")
        if (job["metadata"].get("annotations") or {}).get(HARMLESS) == "true":
            rewritten = rewrite_policies(job["spec"])
            patch = tuple(patch_operations(job, {**job, "spec": rewritten.spec}))
            return Answer(
                "rewritten" if patch else "harmless",
                patch=patch,
                warnings=unclear + _prefix_warnings(rewritten.changes),
            )
        found = find_preemption_losses(job["spec"])
        return Answer("warned" if found else "harmless", warnings=unclear + _prefix_warnings(map(str, found)))

    def _is_protected(self, job: Object) -> bool:
        """Whether pods of the job request protection, or are in a queue that protects pods without an opt-out."""
        spec = job["spec"]
        queue = self._queue(spec.get("queue") or DEFAULT_QUEUE)
        by_queue = queue is not None and is_protecting(queue)
        by_queue = by_queue and (spec.get("schedulerName") or SCHEDULER_NAME) == SCHEDULER_NAME
        return any(by_queue if is_without_id(pod) else _has_identity(pod) for pod in _sample_pods_of_tasks(job))


def _is_large(spec: Object) -> bool:
    tasks = spec.get("tasks") or ()
    if len(tasks) > MOST_TASKS:
        return True
    lists = (spec.get("policies"), *(task.get("policies") for task in tasks))
    specs = ((task.get("template") or {}).get("spec") or {} for task in tasks)
    containers = sum(len(one.get("containers") or ()) for one in specs)
    return containers > MOST_CONTAINERS or any(len(one or ()) > MOST_POLICIES for one in lists)


def _sample_pods_of_tasks(job: Object) -> Iterator[Object]:
    """Yield one pod of each task, reduced to the fields that identify it."""
    for task in job["spec"].get("tasks") or ():
        template = task.get("template") or {}
        metadata = template.get("metadata") or {}
        labels = {**(metadata.get("labels") or {}), **({TASK: task["name"]} if task.get("name") else {})}
        yield {**template, "metadata": {**metadata, "labels": labels}}


def _has_identity(pod: Object) -> bool:
    try:
        return replica_of(pod) is not None
    except UsageError:  # it gets a warning, and is not protected
        return False


def _identity_warnings(job: Object) -> Iterator[str]:
    """Yield warnings for its pods: at their own CREATE only Volcano's controller would get these."""
    for pod in _sample_pods_of_tasks(job):
        try:
            replica_of(pod)
        except UsageError as error:
            yield f"cedana: pods of this task are not protected: {error}"


def _prefix_warnings(sentences: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"cedana: {sentence}" for sentence in sentences)
