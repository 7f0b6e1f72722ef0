"""Whether a new pod has siblings that nothing tells apart: the pods of a Job without indices, or of a ReplicaSet.

Each of them gets a number by chance, so that no two are saved under one name; which snapshot one of them continues is
the coordinator's choice, who alone sees that no other one has it.

A Job that another object has made may have sister Jobs of the same id; where no label tells them apart, their names do.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

import msgspec
import structlog

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import JOBS
from cedana_sched.model.objects import names
from cedana_sched_webhooks.identity import ALIKE, controller_of, is_numbered, kind_of, place_in

log = structlog.get_logger(__name__)

LARGEST_NUMBER: Final = 2**31
"""Of 1,000 siblings, two have the same number once in 4,000 times."""
MOST_JOBS: Final = 10_000
_JOB_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_ONE_AFTER_ANOTHER: Final = frozenset({"CronJob"})
"""Kinds whose Jobs are meant to go on with each other's work."""


class JobSpec(msgspec.Struct, frozen=True):
    """How many pods it runs at a time; Kubernetes' default is 1."""

    parallelism: int | None = None


class Job(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()


class Apart(msgspec.Struct, frozen=True):
    """What tells a pod from others of its id, beside its labels: see `identity.replica_of`."""

    by_chance: int | None = None
    job: str = ""


class Siblings:
    """Asks the API server, and only for pods of Jobs whose labels do not say all."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._named: dict[str, str] = {}
        """By uid of a Job: what its name adds to the id of its pods."""

    async def told_apart(self, pod: Object, namespace: str) -> Apart:
        """Nothing for a pod that has no siblings, or whose labels say who it is.

        Raises:
            UsageError: a number among its labels is none.
        """
        owner, numbered = controller_of(pod), is_numbered(pod)
        if kind_of(owner) in ALIKE:
            return Apart() if numbered else Apart(_by_chance())
        if kind_of(owner) != (JOBS.group_version, JOBS.kind) or (numbered and _is_of_one_job(pod)):
            return Apart()
        if numbered and (known := self._named.get(str(owner.get("uid")))) is not None:
            return Apart(job=known)
        is_of_one_job = _is_of_one_job(pod)
        del pod  # it may be large, and the answer long in coming
        name = str(owner.get("name"))
        if not _JOB_NAME.fullmatch(name):  # whoever writes the pod writes it, and it becomes a path
            return Apart() if numbered else Apart(_by_chance())
        try:
            job = await self._api.get(JOBS, name, namespace, into=Job)
        except ApiError as error:  # with siblings or without: a number by chance is wrong for nobody
            log.warning("controller not read", kind=JOBS.kind, name=name, problem=error.message)
            return Apart() if numbered else Apart(_by_chance())
        several = (job.spec.parallelism or 0) > 1
        return Apart(
            by_chance=_by_chance() if several and not numbered else None,
            job="" if is_of_one_job else self._note(job),
        )

    def _note(self, job: Job) -> str:
        """Who made a Job does not change: the rest of its numbered pods need not ask.

        It is noted under the uid that the API server says: a pod may name any.
        """
        name = job.metadata.name if _has_sisters(job) else ""
        self._named[job.metadata.uid] = name
        if len(self._named) > MOST_JOBS:
            del self._named[next(iter(self._named))]
        return name


def _by_chance() -> int:
    return secrets.randbelow(LARGEST_NUMBER)


def _is_of_one_job(pod: Object) -> bool:
    """Whether its id is its Job's own, or its labels tell which Job it is of."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return annotations.get(names.DERIVED_ID) == "true" or bool(place_in(pod).role)


def _has_sisters(job: Job) -> bool:
    owner = job.metadata.owner
    return owner is not None and owner.kind not in _ONE_AFTER_ANOTHER
