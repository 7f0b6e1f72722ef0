"""Pods as workloads: the agent's runtime interface over the CRI containers of this node.

A pod's uid is the workload's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Protocol

import structlog
from msgspec import structs

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from cedana_sched.cluster.node.containers.bundles import Bundles, Container
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import describe, freezer_of
from cedana_sched.cluster.node.containers.ephemeral_volumes import volumes_of
from cedana_sched.cluster.node.containers.open_volume_files import outside_files_note, volume_files_note
from cedana_sched.cluster.node.containers.privileges import (
    IMAGES,
    PRIVILEGES,
    SERVICE_ACCOUNT,
    privileges_of,
)
from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.outside_files import MOST_BYTES as MOST_OUTSIDE_BYTES
from cedana_sched.runtime_handler.privilege_record import encode
from cedana_sched.runtime_handler.volume_file_comparison import MOST_BYTES
from cedana_sched.snapshot import freezer

log = structlog.get_logger(__name__)


class PodSpecs(Protocol):
    """Specs of pods, as the API server has them."""

    def images(self, uid: str) -> dict[str, str]:
        """Return the images of a pod's containers by container name, as in the pod's spec; empty for an unknown pod."""
        ...

    def service_account(self, uid: str) -> str | None:
        """Return the name of a pod's ServiceAccount; None for an unknown pod."""
        ...


class PodRuntime:
    """The pods of one node; implements `WorkloadRuntime`.

    Args:
        was_restored: whether the running containers of a pod were restored from a snapshot.
        paths: paths of the node's containers and pods.
        pending_kills: of pods that are killed once they are deleted.
        specs: the pods of the node.
    """

    def __init__(
        self,
        was_restored: Callable[[WorkloadRef], Awaitable[bool]],
        paths: HostPaths,
        pending_kills: PendingKills,
        specs: PodSpecs,
    ) -> None:
        self._was_restored = was_restored
        self._specs = specs
        self._paths = paths
        self._bundles = Bundles(paths)
        self._pending_kills = pending_kills
        self._looking: dict[str, StoreThreads] = {}
        """By uid of a pod: a thread of its own, since a read of a volume whose server is gone never returns."""

    async def find_running(self, workload: WorkloadRef) -> RunningWorkload | None:
        """Return the workload's running containers; None if there are none, or if its kill is pending."""
        if workload.uid in self._pending_kills:
            return None
        return await self._read_workload_in_thread(workload.uid, restored=await self._was_restored(workload))

    async def kill_frozen(self, checkpoint_uid: str, workload: WorkloadRef, *, insist: bool = False) -> bool:
        """Kill the pod when it is deleted, or now; see `PendingKills`. Returns whether no process of the pod remains.

        Raises:
            FreezerError: the pod is deleted already, or must die now, and some process did not exit in time.
            OSError: the record of the pending kill cannot be written.
        """
        if not insist:
            return await self._pending_kills.add(workload.uid, checkpoint_uid)
        if await self._pending_kills.kill_now(workload.uid, checkpoint_uid):
            return True
        if workload.uid in self._pending_kills:  # by another checkpoint
            return False
        return await self._read_workload_in_thread(workload.uid, restored=False) is None

    async def undo_kill(self, checkpoint_uid: str, workload: WorkloadRef) -> None:
        """See `PendingKills`."""
        await self._pending_kills.cancel(workload.uid, checkpoint_uid)

    def forget_pod(self, pod_uid: str) -> None:
        """Drop the state of a pod that no longer exists."""
        self._looking.pop(pod_uid, None)

    async def _read_workload_in_thread(self, pod_uid: str, *, restored: bool) -> RunningWorkload | None:
        threads = self._looking.setdefault(pod_uid, StoreThreads(1, name="look"))
        return await threads.run(self._read_workload, pod_uid, restored=restored)

    def _read_workload(self, pod_uid: str, *, restored: bool) -> RunningWorkload | None:
        everything = self._bundles.running_containers(pod_uid)
        found = [container for container in everything if not container.is_restore_container]
        described = [(container, tree) for container in found if (tree := self._describe_if_running(container))]
        if not described:
            return None
        containers = tuple(tree for _, tree in described)
        beside = tuple(self._paths.agent_path(freezer_of(one.state)) for one in everything if one.is_restore_container)
        volumes = volumes_of(pod_uid, found, self._paths)
        facts: dict[str, Any] = {"containers": [tree.name for tree in containers], "volumes": sorted(volumes)}
        if all(freezer.is_frozen(tree.freezer) for tree in containers):
            facts |= self._restore_facts_of(pod_uid, found)
            containers = tuple(self._with_volume_files(pod_uid, described))
        return RunningWorkload(containers, volumes, facts, restored, beside)

    def _restore_facts_of(self, pod_uid: str, containers: Iterable[Container]) -> dict[str, Any]:
        """Return the privileges of frozen containers; a container whose privileges are unreadable is not restored."""
        privileges = {}
        for container in containers:
            try:
                privileges[container.name] = encode(privileges_of(container, self._paths))
            except (OSError, ValueError) as error:
                log.warning("privileges not recorded", pod=pod_uid, container=container.name, error=str(error))
        account = self._specs.service_account(pod_uid)
        return {PRIVILEGES: privileges, IMAGES: self._specs.images(pod_uid), SERVICE_ACCOUNT: account}

    def _with_volume_files(
        self, pod_uid: str, described: Iterable[tuple[Container, RunningContainer]]
    ) -> Iterator[RunningContainer]:
        """Add notes of the volume files to frozen containers; a container without the first note is not restored."""
        left, outside_left = MOST_BYTES, MOST_OUTSIDE_BYTES
        for container, tree in described:
            try:
                note = volume_files_note(container, self._paths, left)
                outside = outside_files_note(container, pod_uid, self._paths, outside_left)
            except (OSError, ValueError) as error:
                log.warning("files of volumes not recorded", container=container.name, error=str(error))
                yield tree
            else:
                left -= sum(map(len, note.values()))
                outside_left -= sum(map(len, outside.values()))
                yield structs.replace(tree, notes=tree.notes | note | outside)

    def _describe_if_running(self, container: Container) -> RunningContainer | None:
        try:
            return describe(container, self._paths)
        except (FileNotFoundError, ProcessLookupError):
            return None  # it ended meanwhile
