"""Volcano's jobs when they are created: people are warned of policies that make a loss of a preemption.

On request (`HARMLESS` on the job) the policies are rewritten. Nobody is ever refused.
"""

from __future__ import annotations

from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched_volcano.vcjob_policies import harmless, losses
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.json_patch import difference

HARMLESS: Final = f"{names.GROUP}/rewrite-policies"
"""Annotation of a vcjob: `true` has its policies rewritten, so that preemptions cost nothing."""


async def answer_for_job(request: Request) -> Answer:
    """What is said of a job, or changed in it."""
    job = request.object
    if job is None or not _is_protected(job):
        return Answer("not-ours")
    if (job["metadata"].get("annotations") or {}).get(HARMLESS) == "true":
        rewritten = harmless(job["spec"])
        patch = tuple(difference(job, {**job, "spec": rewritten.spec}))
        return Answer("rewritten" if patch else "harmless", patch=patch, warnings=_told(rewritten.changes))
    found = losses(job["spec"])
    return Answer("warned" if found else "harmless", warnings=_told(map(str, found)))


def _told(sentences: Any) -> tuple[str, ...]:
    return tuple(f"cedana: {sentence}" for sentence in sentences)


def _is_protected(job: Object) -> bool:
    """Whether pods of it ask for protection; those of a queue that protects all are known when they come."""
    templates = [task.get("template") or {} for task in job["spec"].get("tasks") or ()]
    return any(_is_named(template) for template in templates)


def _is_named(template: Object) -> bool:
    if names.ID in ((template.get("metadata") or {}).get("annotations") or {}):
        return True
    containers = (template.get("spec") or {}).get("containers") or ()
    variables = (one for container in containers for one in container.get("env") or ())
    return any(one.get("name") == CHECKPOINT_VARIABLE for one in variables)
