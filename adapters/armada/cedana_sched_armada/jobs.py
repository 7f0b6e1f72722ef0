"""Where Armada's jobs are in pods: which job and job set a pod belongs to, and its gang."""

from __future__ import annotations

import msgspec

from cedana_sched.kube.objects import Pod
from cedana_sched.model.objects.names import GROUP
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.marks import JOB_LABEL, JOB_SET_ANNOTATION, QUEUE_LABEL, RUN_LABEL

GANG = "armadaproject.io/gangId"
CARDINALITY = "armadaproject.io/gangCardinality"
EXTERNAL_URI = "armadaproject.io/externalJobUri"

PREVIOUS = f"{GROUP}/armada-previous-job"
"""Annotation of a job that we have submitted: the job whose place it takes."""
FIRST = f"{GROUP}/armada-first-job"
"""Annotation of such a job: the job that a person has submitted."""
NUMBER = f"{GROUP}/armada-resubmissions"
"""Annotation of such a job: how many times in a row."""


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
    queue, name = queue_of(pod), pod.metadata.annotations.get(JOB_SET_ANNOTATION)
    return JobSet(queue, name) if queue and name and job_of(pod) else None


def gang_of(pod: Pod) -> Gang | None:
    job_set = job_set_of(pod)
    identifier = gang_id(pod.metadata.annotations)
    return Gang(job_set.queue, identifier) if job_set is not None and identifier is not None else None


def gang_id(annotations: dict[str, str]) -> str | None:
    """None where it is alone: Armada takes a gang of one for a job."""
    cardinality = annotations.get(CARDINALITY, "")
    return annotations.get(GANG) or None if cardinality.isdecimal() and int(cardinality) > 1 else None
