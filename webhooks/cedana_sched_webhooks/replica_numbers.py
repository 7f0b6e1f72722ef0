"""Whether a new pod has indistinguishable siblings: the pods of a Job without indices, or of a ReplicaSet.

Each of them gets a random number, so that no two are saved under one identity; the coordinator chooses which snapshot
each one restores, because only the coordinator has the claims.

A Job with an owner may have sister Jobs of the same id; if no label distinguishes them, their names do.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from typing import Final

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError, decoded
from cedana_sched.kube.namespace_turns import NamespaceTurns
from cedana_sched.kube.resources import JOBS, PODS
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched_webhooks.identity import ALIKE, controlling_owner_of, is_numbered, owner_kind_of, place_among_replicas

log = structlog.get_logger(__name__)

LARGEST_NUMBER: Final = 2**31
"""Among 1,000 siblings, the chance that two share a number is 1 in 4,000."""
MOST_JOBS: Final = 10_000
LONGEST_REPLACEMENT_SECONDS: Final = 3_600.0
"""A pod that has been terminating for longer is on a dead node: what replaces it waits for nothing."""
LISTS_AT_ONCE: Final = 4
"""Lists of siblings at a time: tenants cause them, and choose how many siblings there are."""
LISTS_OF_NAMESPACE: Final = 2
"""Likewise, of one namespace."""
LIST_SECONDS: Final = 5.0
"""Timeout of one list: the API server waits no longer for the answer."""
_SIBLING_LABELS: Final = ("batch.kubernetes.io/controller-uid", "pod-template-hash")
"""Labels of all pods of one controller, of those that replace a pod before it has ended."""
_JOB_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_ONE_AFTER_ANOTHER: Final = frozenset({"CronJob"})
"""Kinds whose Jobs continue each other's work."""


class JobSpec(msgspec.Struct, frozen=True):
    """Number of pods that run at a time; Kubernetes' default is 1."""

    parallelism: int | None = None


class Job(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: JobSpec = JobSpec()


class Distinction(msgspec.Struct, frozen=True):
    """What distinguishes a pod from others of its id, besides its labels: see `identity.replica_of`."""

    by_chance: int | None = None
    job: str = ""
    replaces: bool = False
    """Whether a pod of its controller is being deleted, and may be saved: this one may be its replacement."""


class ReplicaNumbers:
    """Reads Jobs from the API server, only for pods whose labels are not sufficient."""

    def __init__(self, api: Api, *, looks_for_replaced: bool = False) -> None:
        self._api = api
        self._looks_for_replaced = looks_for_replaced
        self._turns = NamespaceTurns(LISTS_AT_ONCE, LISTS_OF_NAMESPACE)
        self._named: dict[str, str] = {}
        """By uid of a Job: the part that its name adds to the id of its pods."""

    async def distinguish(self, pod: Object, namespace: str) -> Distinction:
        """Return what distinguishes the pod; empty if it has no siblings, or its labels identify it.

        Raises:
            UsageError: a label that must be a number is none.
        """
        owner, labels = controlling_owner_of(pod), (pod.get("metadata") or {}).get("labels") or {}
        selector = next((f"{key}={labels[key]}" for key in _SIBLING_LABELS if key in labels), None)
        numbering = self._number(pod, namespace)
        del pod  # free it: it may be large, and the calls slow
        distinction = await numbering
        if not self._looks_for_replaced or selector is None or not owner.get("uid"):
            return distinction
        replaces = await self._has_terminating_sibling(namespace, str(owner.get("uid")), selector)
        return msgspec.structs.replace(distinction, replaces=replaces)

    async def _has_terminating_sibling(self, namespace: str, owner_uid: str, selector: str) -> bool:
        query = {"labelSelector": f"{names.PROTECTED}=true,{selector}", "fieldSelector": "status.phase=Running"}
        found = False

        def see(body: msgspec.Raw) -> None:
            nonlocal found
            found = found or _is_terminating(decoded("GET siblings", bytes(body), PartialObject).metadata, owner_uid)

        try:
            async with self._turns.turn(namespace), asyncio.timeout(LIST_SECONDS):
                await self._api.list_each(PODS, namespace, query, see, only_metadata=True)
        except (ApiError, TimeoutError) as error:  # it starts from the beginning if its predecessor is saved after this
            log.warning("siblings not read", namespace=namespace, error=str(error) or f"{LIST_SECONDS:.0f} s are over")
        return found

    async def _number(self, pod: Object, namespace: str) -> Distinction:
        owner, numbered = controlling_owner_of(pod), is_numbered(pod)
        if owner_kind_of(owner) in ALIKE:
            return Distinction() if numbered else Distinction(_random_number())
        if owner_kind_of(owner) != (JOBS.group_version, JOBS.kind) or (numbered and _is_job_identified(pod)):
            return Distinction()
        if numbered and (known := self._named.get(str(owner.get("uid")))) is not None:
            return Distinction(job=known)
        is_of_one_job = _is_job_identified(pod)
        del pod  # free it: it may be large, and the call slow
        name = str(owner.get("name"))
        if not _JOB_NAME.fullmatch(name):  # the pod's author controls the name, and it becomes part of a path
            return Distinction() if numbered else Distinction(_random_number())
        try:
            job = await self._api.get(JOBS, name, namespace, into=Job)
        except ApiError as error:  # a random number is right with and without siblings
            log.warning("controller not read", kind=JOBS.kind, name=name, error=error.message)
            return Distinction() if numbered else Distinction(_random_number())
        several = (job.spec.parallelism or 0) > 1
        return Distinction(
            by_chance=_random_number() if several and not numbered else None,
            job="" if is_of_one_job else self._cache_job_name(job),
        )

    def _cache_job_name(self, job: Job) -> str:
        """Cache what the Job's name adds: its owner never changes, so its other numbered pods need no read.

        The key is the uid that the API server returned: a pod may claim any uid.
        """
        name = job.metadata.name if _has_sibling_jobs(job) else ""
        self._named[job.metadata.uid] = name
        if len(self._named) > MOST_JOBS:
            del self._named[next(iter(self._named))]
        return name


def _is_terminating(metadata: Metadata, owner_uid: str) -> bool:
    owner = metadata.controller_reference
    if owner is None or owner.uid != owner_uid or metadata.annotations.get(names.NOT_PREEMPTED) == "true":
        return False
    began_at = metadata.deletion_began_at
    return began_at is not None and SERVER_TIME.now().timestamp() - began_at < LONGEST_REPLACEMENT_SECONDS


def _random_number() -> int:
    return secrets.randbelow(LARGEST_NUMBER)


def _is_job_identified(pod: Object) -> bool:
    """Whether the pod's id is its Job's own, or its labels identify its Job."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return annotations.get(names.DERIVED_ID) == "true" or bool(place_among_replicas(pod).role)


def _has_sibling_jobs(job: Job) -> bool:
    owner = job.metadata.controller_reference
    return owner is not None and owner.kind not in _ONE_AFTER_ANOTHER
