"""Job, job set and gang of a pod, by the executor's labels and annotations."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.model.objects.names import GROUP
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.executor_labels import JOB_LABEL, JOB_SET_ANNOTATION, QUEUE_LABEL, RUN_LABEL

GANG = register_cached_key("armadaproject.io/gangId")
CARDINALITY = register_cached_key("armadaproject.io/gangCardinality")
EXTERNAL_URI = "armadaproject.io/externalJobUri"

PREVIOUS = f"{GROUP}/armada-previous-job"
"""Annotation of a resubmitted job: the job that it replaces."""
FIRST = f"{GROUP}/armada-first-job"
"""Annotation of a resubmitted job: the job that the user submitted."""
NUMBER = f"{GROUP}/armada-resubmissions"
"""Annotation of a resubmitted job: its number of consecutive resubmissions."""

LONGEST_NAME = 512
"""Characters of a job set or gang name. Armada has no limit, and each name is stored in our notes."""
_NUMBER = re.compile("[0-9]{1,6}")


class Gang(msgspec.Struct, frozen=True, order=True):
    """Jobs that Armada starts and preempts together. Ids are unique within a queue while a gang is active."""

    queue: str
    id: str


def job_of(pod: Pod) -> str | None:
    """Return the pod's job; None if it is no pod of Armada's."""
    return pod.metadata.labels.get(JOB_LABEL)


def run_of(pod: Pod) -> str:
    return pod.metadata.labels.get(RUN_LABEL, "")


def queue_of(pod: Pod) -> str:
    return pod.metadata.labels.get(QUEUE_LABEL, "")


def job_set_of(pod: Pod) -> JobSet | None:
    """Return the pod's job set; None if it is no pod of Armada's, or the name is too long to be watched."""
    queue, name = queue_of(pod), pod.metadata.annotations.get(JOB_SET_ANNOTATION, "")
    return JobSet(queue, name) if queue and 0 < len(name) <= LONGEST_NAME and job_of(pod) else None


def has_too_long_name(pod: Pod) -> bool:
    """Whether the name of its job set exceeds `LONGEST_NAME`."""
    return len(pod.metadata.annotations.get(JOB_SET_ANNOTATION, "")) > LONGEST_NAME


def gang_of(pod: Pod) -> Gang | None:
    job_set = job_set_of(pod)
    identifier = gang_id(pod.metadata.annotations)
    return Gang(job_set.queue, identifier) if job_set is not None and identifier is not None else None


def gang_id(annotations: Mapping[str, str]) -> str | None:
    """Return the gang's id; None without a gang: Armada treats a gang of one as a single job."""
    identifier = annotations.get(GANG, "")
    return (
        identifier
        if 0 < len(identifier) <= LONGEST_NAME and number_in_annotation(annotations, CARDINALITY) > 1
        else None
    )


def number_in_annotation(annotations: Mapping[str, str], name: str) -> int:
    """Return the number in an annotation; 0 if it has none, or an impossible one: its author may write anything."""
    text = annotations.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else 0
