"""Leader election by a Lease: a leader that cannot renew the Lease stops before another candidate can start.

Durations are measured by each candidate's own monotonic clock, never by comparing the clocks of two machines: a
candidate takes over a Lease that it has seen unchanged for the whole lease duration.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec
import structlog

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AlreadyExistsError, ApiError, ConflictError
from cedana_sched.kube.resources import LEASES
from cedana_sched.model.errors import CedanaSchedError

log = structlog.get_logger(__name__)


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int = 0
    lease_duration_seconds: int = 0
    acquire_time: str | None = None


class Lease(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class LeaseTiming(msgspec.Struct, frozen=True, kw_only=True):
    """Timing in seconds. A leader stops `renew_deadline` after its last renewal; others start after `duration`."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    renew_every: float = 2.0


class LeadershipLostError(CedanaSchedError):
    """The Lease was not renewed in time, or another candidate holds it."""


class LeaderElection:
    """A candidate for the Lease `name` in `namespace`; `identity` is unique among the candidates."""

    def __init__(self, api: Api, name: str, namespace: str, identity: str, timing: LeaseTiming | None = None) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._timing = timing or LeaseTiming()
        self._seen: tuple[str, float] = ("", 0.0)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the Lease, run `work` while holding it, release it.

        Raises:
            LeadershipLostError: the Lease was lost; `work` was cancelled, and has ended.
        """
        lease = await self._acquire()
        log.info("leader", lease=self._name, transitions=lease.spec.lease_transitions)
        task = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew(lease), name="lease")
        try:
            await asyncio.wait({task, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:  # also at shutdown: the next leader starts at once
            for one in (task, renewing):
                one.cancel()
            await asyncio.wait({task, renewing})
            if _has_ended_normally(renewing):
                await self._release_lease()
        if not _has_ended_normally(renewing):
            _has_ended_normally(task)  # asyncio logs errors that are never retrieved; the loss is their cause
            await renewing
        await task

    async def _acquire(self) -> Lease:
        while True:
            try:
                lease = await self._try_to_acquire()
            except ApiError as error:
                log.warning("lease cannot be requested, retrying", error=error.message)
                lease = None
            if lease is not None:
                return lease
            await asyncio.sleep(self._timing.renew_every)

    async def _try_to_acquire(self) -> Lease | None:
        current = await self._api.find(LEASES, self._name, self._namespace, into=Lease)
        try:
            if current is None:
                return await self._api.create(LEASES, self._body(None), into=Lease)
            if self._is_taken(current):
                return None
            return await self._api.update(LEASES, self._body(current), into=Lease)
        except (AlreadyExistsError, ConflictError):
            return None  # another candidate was faster

    def _is_taken(self, lease: Lease) -> bool:
        if not lease.spec.holder_identity or lease.spec.holder_identity == self._identity:
            return False
        version, since = self._seen
        if lease.metadata.resource_version != version:
            self._seen = (lease.metadata.resource_version, time.monotonic())
            return True
        return time.monotonic() - since < max(lease.spec.lease_duration_seconds, self._timing.duration)

    async def _renew(self, lease: Lease) -> None:
        """Renew the Lease forever."""
        renewed_at = time.monotonic()
        while True:
            await asyncio.sleep(self._timing.renew_every)
            left = renewed_at + self._timing.renew_deadline - time.monotonic()
            began = time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    lease = await self._api.update(LEASES, self._body(lease), into=Lease)
                renewed_at = began
            except ConflictError:
                lease = await self._reread_own_lease(lease, renewed_at)
            except (ApiError, TimeoutError) as error:
                if time.monotonic() - renewed_at >= self._timing.renew_deadline:
                    raise LeadershipLostError(
                        f"the lease {self._name} could not be renewed for {self._timing.renew_deadline:g} s: {error!r}",
                        remedy="see whether the API server answers",
                    ) from error
                log.warning("lease not renewed, trying again", error=str(error) or repr(error))

    async def _reread_own_lease(self, lease: Lease, renewed_at: float) -> Lease:
        """Read the Lease after a conflict: our own renewal, considered failed, may have reached the API server."""
        try:
            async with asyncio.timeout(max(renewed_at + self._timing.renew_deadline - time.monotonic(), 0.0)):
                current = await self._api.get(LEASES, self._name, self._namespace, into=Lease)
        except (ApiError, TimeoutError):
            return lease
        if current.spec.holder_identity != self._identity:
            raise LeadershipLostError(f"{current.spec.holder_identity or 'nobody'} holds the lease {self._name} now")
        return current

    async def _release_lease(self) -> None:
        """Release the Lease, so that the next candidate need not wait for it to expire."""
        try:
            async with asyncio.timeout(self._timing.renew_every):
                patch: Object = {"spec": {"holderIdentity": None}}
                current = await self._api.get(LEASES, self._name, self._namespace, into=Lease)
                if current.spec.holder_identity == self._identity:
                    patch["metadata"] = {"resourceVersion": current.metadata.resource_version}
                    await self._api.patch(LEASES, self._name, self._namespace, patch)
        except (ApiError, TimeoutError) as error:
            log.info("lease not given back", error=str(error) or repr(error))

    def _body(self, lease: Lease | None) -> Object:
        now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = lease is not None and lease.spec.holder_identity == self._identity
        metadata = {"name": self._name, "namespace": self._namespace}
        transitions = 0
        if lease is not None:
            metadata["resourceVersion"] = lease.metadata.resource_version
            transitions = lease.spec.lease_transitions + (0 if ours else 1)
        acquired = lease.spec.acquire_time if lease is not None and ours else now
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._timing.duration),
            "leaseTransitions": transitions,
            "acquireTime": acquired,
            "renewTime": now,
        }
        return {"metadata": metadata, "spec": spec}


def _has_ended_normally(task: asyncio.Future[None]) -> bool:
    """Return whether the task was cancelled or succeeded."""
    return task.cancelled() or task.exception() is None
