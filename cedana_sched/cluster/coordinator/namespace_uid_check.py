"""Whether the namespace for which a record was made still has that name.

Uses `get` of the one namespace: a watch may show a deleted one. Preemptions have many victims at once, so a result is
cached briefly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from cedana_sched.cluster.coordinator.record_objects import namespace_uid_of
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import NamespaceGoneError
from cedana_sched.kube.resources import NAMESPACES, PODS
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Record, with_namespace_uid

log = structlog.get_logger(__name__)

CURRENT_SECONDS: Final = 1.0
"""Shorter than the deletion of a namespace with pods in it."""
_MOST_KNOWN: Final = 4096
_PODS_LOOKED_AT: Final = 3


class OfAnotherNamespaceError(NamespaceGoneError):
    """The namespace with this uid, and so its pods, no longer exist.

    `current` is the uid of the namespace that has the name now; empty: none has.
    """

    def __init__(self, name: str, uid: str, current: str) -> None:
        now = f"that name has one with uid {current}" if current else "there is none of that name"
        super().__init__(f"it is of namespace {name} with uid {uid}, and now {now}", status=404)
        self.current = current


class NamespaceUidCheck:
    """Namespace checks of one cluster.

    Args:
        api: may get namespaces and pods.
        clock: monotonic seconds.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[tuple[str, str], float] = {}
        """Time of the last confirmation, by name and uid."""

    async def require_current_uid(self, name: str, uid: str) -> None:
        """Require that the namespace of this name has this uid; see `identity.may_be_same_namespace` for empty uids.

        Raises:
            OfAnotherNamespaceError: it has another uid, or does not exist.
            ApiError: the API server cannot answer now.
        """
        called_at = self._clock()
        known = self._known.get((name, uid))
        if not uid or (known is not None and called_at - known < CURRENT_SECONDS):
            return
        found = await self._api.find(NAMESPACES, name, into=PartialObject)
        if found is None or found.metadata.uid != uid:
            self._known.pop((name, uid), None)
            raise OfAnotherNamespaceError(name, uid, found.metadata.uid if found is not None else "")
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[name, uid] = called_at

    async def with_current_uid(self, record: Record, namespace: str, workloads: Sequence[WorkloadRef]) -> Record:
        """Return the record, with its namespace uid corrected if the record's own pods are in another namespace.

        A webhook with a stale watch records the uid of the namespace that had the name before.

        Args:
            record: to be written as an object.
            namespace: of the object.
            workloads: the record's pods in that namespace.

        Raises:
            OfAnotherNamespaceError: the record belongs to another namespace of that name.
            ApiError: the API server cannot answer now.
        """
        try:
            await self.require_current_uid(namespace, namespace_uid_of(record))
        except OfAnotherNamespaceError as error:
            if not await self._has_live_pod(workloads[:_PODS_LOOKED_AT]):
                raise
            log.warning("namespace's uid corrected", record=record.uid, namespace=namespace, error=error.message)
            return with_namespace_uid(record, error.current)
        return record

    async def _has_live_pod(self, workloads: Sequence[WorkloadRef]) -> bool:
        """Whether one of these pods exists now: then so does its namespace."""
        for workload in workloads:
            pod = await self._api.find(PODS, workload.name, workload.namespace, into=PartialObject)
            if pod is not None and pod.metadata.uid == workload.uid:
                return True
        return False
