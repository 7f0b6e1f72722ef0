"""Where Armada's jobs are in pods: which job and job set a pod belongs to, and its gang."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from cedana_sched.kube.kept import kept
from cedana_sched.kube.objects import Pod
from cedana_sched.model.objects.names import GROUP
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.marks import JOB_LABEL, JOB_SET_ANNOTATION, QUEUE_LABEL, RUN_LABEL

GANG = kept("armadaproject.io/gangId")
CARDINALITY = kept("armadaproject.io/gangCardinality")
EXTERNAL_URI = "armadaproject.io/externalJobUri"

PREVIOUS = f"{GROUP}/armada-previous-job"
"""Annotation of a job that we have submitted: the job whose place it takes."""
FIRST = f"{GROUP}/armada-first-job"
"""Annotation of such a job: the job that a person has submitted."""
NUMBER = f"{GROUP}/armada-resubmissions"
"""Annotation of such a job: how many times in a row."""

LONGEST_NAME = 512
"""Of a job set or gang, in characters. Armada has no bound of its own, and each name is kept in our notes."""
_NUMBER = re.compile("[0-9]{1,6}")


class Gang(msgspec.Struct, frozen=True, order=True):
    """Jobs that Armada starts together, and preempts together. Ids are unique within a queue while one is active."""

    queue: str
    id: str


def job_of(pod: Pod) -> str | None:
    """None where it is no pod of Armada's."""
    return pod.metadata.labels.get(JOB_LABEL)


def run_of(pod: Pod) -> str:
    return pod.metadata.labels.get(RUN_LABEL, "")


def queue_of(pod: Pod) -> str:
    return pod.metadata.labels.get(QUEUE_LABEL, "")


def job_set_of(pod: Pod) -> JobSet | None:
    """None where it is no pod of Armada's, or names a job set that is not followed, for its name is too long."""
    queue, name = queue_of(pod), pod.metadata.annotations.get(JOB_SET_ANNOTATION, "")
    return JobSet(queue, name) if queue and 0 < len(name) <= LONGEST_NAME and job_of(pod) else None


def has_too_long_name(pod: Pod) -> bool:
    """Whether the name of its job set is longer than those that are followed."""
    return len(pod.metadata.annotations.get(JOB_SET_ANNOTATION, "")) > LONGEST_NAME


def gang_of(pod: Pod) -> Gang | None:
    job_set = job_set_of(pod)
    identifier = gang_id(pod.metadata.annotations)
    return Gang(job_set.queue, identifier) if job_set is not None and identifier is not None else None


def gang_id(annotations: Mapping[str, str]) -> str | None:
    """None where it is alone: Armada takes a gang of one for a job."""
    identifier = annotations.get(GANG, "")
    return identifier if 0 < len(identifier) <= LONGEST_NAME and number_in(annotations, CARDINALITY) > 1 else None


def number_in(annotations: Mapping[str, str], name: str) -> int:
    """The number that an annotation holds; 0 where it holds none, or one that no job has: whoever may write it."""
    text = annotations.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0
