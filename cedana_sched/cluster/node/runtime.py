"""Pods as workloads: the agent's runtime interface over the CRI containers of this node.

A pod's uid is the workload's. `PodReturns` restores pods through the runtime handler; this module finds their
containers and ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import structlog
from msgspec import structs

from cedana_sched.agent.runtime import RunningContainer, RunningWorkload
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.node.containers.bundles import Bundles, Container
from cedana_sched.cluster.node.containers.description import describe, freezer_of
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.containers.privileges import (
    IMAGES,
    PRIVILEGES,
    SERVICE_ACCOUNT,
    privileges_of,
)
from cedana_sched.cluster.node.containers.volume_files import volume_files_note
from cedana_sched.cluster.node.containers.volumes import volumes_of
from cedana_sched.cluster.node.doomed import DoomedPods
from cedana_sched.cluster.node.returning.progress import StagingProgress
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime.privilege_record import encode
from cedana_sched.runtime.volume_files import MOST_BYTES
from cedana_sched.snapshot import freezer

log = structlog.get_logger(__name__)


class PodReturns(Protocol):
    """Restores pods through the restore container and the runtime handler. Every call is idempotent."""

    async def was_restored(self, workload: WorkloadRef) -> bool:
        """Return whether the running containers were restored from a snapshot."""
        ...

    async def continue_from(
        self, restore_uid: str, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]
    ) -> None:
        """See `WorkloadRuntime.continue_from`; returns when every container of the snapshot runs.

        `restore_facts` is what `PodRuntime` wrote: `containers`, names, and `volumes`, names as in `volumes_of`; for a
        pod that was frozen also the keys named in `containers.privileges`.
        """
        ...

    async def start_cold(self, restore_uid: str, workload: WorkloadRef, why: str | None) -> None:
        """See `WorkloadRuntime.start_cold`."""
        ...

    async def give_up(self, restore_uid: str, workload: WorkloadRef, why: str) -> None:
        """See `WorkloadRuntime.give_up`."""
        ...


class KnownPods(Protocol):
    """Pods according to the API server."""

    async def wait_ended_or_backing_off(self, uid: str) -> None:
        """Return when, by the API server, the pod does not run, and will not be restarted within a moment."""
        ...

    async def peer(self, workload: WorkloadRef, addresses: Collection[str]) -> str | None:
        """See `KnowsPeers`."""
        ...

    def images(self, uid: str) -> dict[str, str]:
        """Return the images of a pod's containers by container name, as in the pod's spec; empty for an unknown pod."""
        ...

    def service_account(self, uid: str) -> str | None:
        """Return the name of a pod's ServiceAccount; None for an unknown pod."""
        ...


class PodRuntime:
    """The pods of one node. An async context manager; its exit leaves the pods as they are.

    The watcher of this node's pods must call `deleted` for each pod with a deletion timestamp, also after a restart,
    and `gone` for each pod that no longer exists; the preStop server must await `ending` before it answers.
    """

    def __init__(self, returns: PodReturns, places: Places, doomed: Path, known: KnownPods) -> None:
        """Wire the parts.

        Args:
            returns: restores pods.
            places: paths of the node's containers and pods.
            doomed: a folder that survives the agent, for `DoomedPods`.
            known: pods according to the API server.
        """
        self._returns = returns
        self._known = known
        self._places = places
        self._bundles = Bundles(places)
        self._doomed = DoomedPods(doomed, self.kill)
        self.deleted = self._doomed.deleted
        self.ending = self._doomed.ending
        self._progress = StagingProgress(places)
        self._restores: dict[str, str] = {}
        """By uid of a pod: the Restore to which the next call belongs."""
        self._looking: dict[str, StoreThreads] = {}
        """By uid of a pod: a thread of its own, since a read of a volume whose server is gone never returns."""

    async def __aenter__(self) -> Self:
        await self._doomed.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._doomed.__aexit__(kind, error, trace)

    async def running(self, workload: WorkloadRef) -> RunningWorkload | None:
        """Return the workload's running containers; None if there are none, or if the pod is doomed."""
        if workload.uid in self._doomed:
            return None
        restored = await self._returns.was_restored(workload)
        return await self._looked(workload.uid, restored=restored)

    async def end_frozen(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        """Kill the pod when it is deleted, or now; see `DoomedPods`. Returns whether no process of the pod remains.

        Raises:
            FreezerError: the pod is deleted already, or must die now, and some process did not exit in time.
            OSError: the record of the doomed pod cannot be written.
        """
        if not insist:
            return await self._doomed.doom(workload.uid, checkpoint_uid)
        if await self._doomed.end(workload.uid, checkpoint_uid):
            return True
        if workload.uid in self._doomed:  # by another checkpoint
            return False
        return await self._looked(workload.uid, restored=False) is None

    async def spare(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """See `DoomedPods`."""
        await self._doomed.spare(workload.uid, checkpoint_uid)

    async def wait_ended(self, workload: WorkloadRef) -> None:
        """See `KnowsEnds`."""
        await self._known.wait_ended_or_backing_off(workload.uid)

    async def peer(self, workload: WorkloadRef, addresses: Collection[str]) -> str | None:
        """See `KnowsPeers`."""
        return await self._known.peer(workload, addresses)

    def gone(self, pod_uid: str) -> None:
        """Drop the state of a pod that no longer exists."""
        self._doomed.gone(pod_uid)
        self._restores.pop(pod_uid, None)
        self._looking.pop(pod_uid, None)

    def returns_as(self, workload: WorkloadRef, restore_uid: str) -> None:
        """See `KnowsBeginnings`."""
        self._restores[workload.uid] = restore_uid

    def staging(self, workload: WorkloadRef, done_bytes: int, total_bytes: int) -> None:
        """See `ShowsStaging`."""
        self._progress.show(workload.uid, done_bytes, total_bytes)

    async def continue_from(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        """See `PodReturns`."""
        await self._returns.continue_from(self._restores[workload.uid], workload, images, restore_facts)

    async def start_cold(self, workload: WorkloadRef, why: str | None) -> None:
        """See `PodReturns`."""
        await self._returns.start_cold(self._restores[workload.uid], workload, why)

    async def give_up(self, workload: WorkloadRef, why: str) -> None:
        """See `PodReturns`."""
        await self._returns.give_up(self._restores[workload.uid], workload, why)

    async def _looked(self, pod_uid: str, *, restored: bool) -> RunningWorkload | None:
        threads = self._looking.setdefault(pod_uid, StoreThreads(1, name="look"))
        return await threads.run(self._look, pod_uid, restored=restored)

    def _look(self, pod_uid: str, *, restored: bool) -> RunningWorkload | None:
        everything = self._bundles.all_of_pod(pod_uid)
        found = [container for container in everything if not container.is_ours]
        described = [(container, tree) for container in found if (tree := self._describe(container))]
        if not described:
            return None
        containers = tuple(tree for _, tree in described)
        beside = tuple(self._places.here(freezer_of(one.state)) for one in everything if one.is_ours)
        volumes = volumes_of(pod_uid, found, self._places)
        facts: dict[str, Any] = {"containers": [tree.name for tree in containers], "volumes": sorted(volumes)}
        if all(freezer.is_frozen(tree.freezer) for tree in containers):
            facts |= self._privileges(pod_uid, found)
            containers = tuple(self._with_volume_files(described))
        return RunningWorkload(containers, volumes, facts, restored, beside)

    def _privileges(self, pod_uid: str, containers: Iterable[Container]) -> dict[str, Any]:
        """Return the privileges of frozen containers; a container whose privileges are unreadable is not restored."""
        privileges = {}
        for container in containers:
            try:
                privileges[container.name] = encode(privileges_of(container, self._places))
            except (OSError, ValueError) as error:
                log.warning("privileges not recorded", pod=pod_uid, container=container.name, problem=str(error))
        account = self._known.service_account(pod_uid)
        return {PRIVILEGES: privileges, IMAGES: self._known.images(pod_uid), SERVICE_ACCOUNT: account}

    def _with_volume_files(self, described: Iterable[tuple[Container, RunningContainer]]) -> Iterator[RunningContainer]:
        """Add notes of the volume files to frozen containers; a container without the note is not restored."""
        left = MOST_BYTES
        for container, tree in described:
            try:
                note = volume_files_note(container, self._places, left)
            except (OSError, ValueError) as error:
                log.warning("files of volumes not recorded", container=container.name, problem=str(error))
                yield tree
            else:
                left -= sum(map(len, note.values()))
                yield structs.replace(tree, notes=tree.notes | note)

    def _describe(self, container: Container) -> RunningContainer | None:
        try:
            return describe(container, self._places)
        except (FileNotFoundError, ProcessLookupError):
            return None  # it ended meanwhile

    async def kill(self, pod_uid: str) -> None:
        """End every process of a pod.

        Raises:
            FreezerError: some process did not exit in time.
        """
        await self._kill(await asyncio.to_thread(self._bundles.all_of_pod, pod_uid))

    async def container(self, pod_uid: str, name: str) -> str | None:
        """Return containerd's id of the running container of this name; None if none runs."""
        found = await asyncio.to_thread(self._bundles.of_pod, pod_uid)
        return next((one.bundle.name for one in found if one.name == name), None)

    async def kill_container(self, pod_uid: str, identifier: str) -> None:
        """End every process of this container, and none of a successor with the same name.

        Raises:
            FreezerError: some process did not exit in time.
        """
        found = await asyncio.to_thread(self._bundles.of_pod, pod_uid)
        await self._kill([one for one in found if one.bundle.name == identifier])

    async def _kill(self, containers: Iterable[Container]) -> None:
        places = [self._places.here(freezer_of(container.state)) for container in containers]
        ends = [asyncio.to_thread(freezer.kill, place) for place in places]
        for outcome in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
