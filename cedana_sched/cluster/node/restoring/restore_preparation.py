"""Prepares the restore of a pod: fills its volumes, and makes a plan for the runtime handler.

The volumes were deleted with the pod that this one replaces.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from cedana_sched.agent.workload_runtime import SnapshotOrigin, on_change_of
from cedana_sched.cluster.node.containers.bundles import Bundles, Specification
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.ephemeral_volumes import SHARED_MEMORY, shared_memory_of
from cedana_sched.cluster.node.restoring.criu_images import prepare_images
from cedana_sched.cluster.node.restoring.internet_addresses import Address
from cedana_sched.cluster.node.restoring.node_pod_lookup import NodePodLookup
from cedana_sched.cluster.node.restoring.own_addresses import read_network_addresses
from cedana_sched.cluster.node.restoring.privilege_checks import (
    is_sidecar,
    recorded_privileges,
    refuse_other_images,
    refuse_other_service_account,
)
from cedana_sched.cluster.node.restoring.restore_states import RestoreStates
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_CONTAINER
from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.handler import find_pod_uid
from cedana_sched.runtime_handler.plan import COLD, FAIL, RESTORE, ContainerPlan, Plan
from cedana_sched.snapshot.criu_toolchain import Toolchain

LAYER = "rootfs.tar"
_EMPTY_DIRS = "volumes/kubernetes.io~empty-dir"


class RestorePreparation:
    """Fills volumes from a snapshot, and makes plans.

    Args:
        paths: of the host.
        bundles: the containers of pods.
        kept: gives the folder of the logs, and the sandbox.
        toolchain: decodes images.
        pods: the pods in the agent's informers.
        stall_seconds: how long CRIU may make no progress.
        restore_seconds: how long one container may take.
    """

    def __init__(
        self,
        paths: HostPaths,
        bundles: Bundles,
        kept: RestoreStates,
        toolchain: Toolchain,
        pods: NodePodLookup,
        *,
        stall_seconds: float,
        restore_seconds: float,
    ) -> None:
        self._paths = paths
        self._bundles = bundles
        self._kept = kept
        self._toolchain = toolchain
        self._pods = pods
        self._stall_seconds = stall_seconds
        self._restore_seconds = restore_seconds

    async def fill_volumes_and_plan(
        self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any], origin: SnapshotOrigin
    ) -> Plan:
        """Fill the volumes, and make the plan.

        Raises:
            RestoreError: the pod differs from the one that was frozen, or would have another image or account.
        """
        names = _names_from_facts(restore_facts, "containers")
        pod = self._pods.pod(workload.uid)
        if pod is None:
            raise RestoreError("the pod is not known on this node any more")
        present = {entry.name for entry in (*pod.spec.containers, *pod.spec.init_containers)}
        running = {
            container.name for container in await asyncio.to_thread(self._bundles.workload_containers, workload.uid)
        }
        if too_early := sorted(running & present):
            raise RestoreError(
                f"the kubelet has started {', '.join(too_early)} although the restore container still waits",
                remedy="delete the pod, so that its successor continues",
            )
        if missing := sorted(set(names) - present):
            raise RestoreError(
                f"the pod has no container {', '.join(missing)} any more, which the snapshot continues",
                remedy="give the pod template the containers that it had, or start it without the snapshot",
            )
        privileges = recorded_privileges(restore_facts)
        if not self._pods.image_may_change(workload):
            refuse_other_images(restore_facts, names, pod)
        if not self._pods.service_account_may_change(workload):
            refuse_other_service_account(restore_facts, pod)
        await self.fill_volumes(workload, images, restore_facts)
        addresses = await asyncio.to_thread(self._addresses_of, workload.uid)
        containers = {}
        for name in names:
            ready = await asyncio.to_thread(prepare_images, self._toolchain, images / name, addresses)
            layer = images / name / LAYER
            containers[name] = ContainerPlan(
                images=str(images / name),
                work=str(self._kept.logs_folder(workload.uid) / name),
                layer=str(layer) if layer.exists() else None,
                criu=ready.criu,
                locks=ready.locks,
                seconds=self._restore_seconds,
                stall_seconds=self._stall_seconds,
                privileges=privileges.get(name),
            )
        before = (entry.name for entry in pod.spec.init_containers if not is_sidecar(entry))
        done = (name for name in before if name not in {*names, RESTORE_CONTAINER})
        fails = self._pods.restore_failure_policy(workload) is OnRestoreFailure.FAIL
        return Plan(
            decision=RESTORE,
            fallback=FAIL if fails else COLD,
            containers=containers,
            skip=tuple(done),
            sandbox=await asyncio.to_thread(self._kept.sandbox_id_of, workload.uid),
            on_change=on_change_of(self._pods.volume_change_policy(workload), origin),
        )

    def _addresses_of(self, pod_uid: str) -> tuple[Address, ...]:
        """Return the addresses of the pod's network; none if its sandbox has just ended, and the restore with it."""
        pid = self._bundles.sandbox_pid(pod_uid)
        with suppress(FileNotFoundError, ProcessLookupError):
            return read_network_addresses(pid) if pid is not None else ()
        return ()

    async def fill_volumes(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        """Give the pod's volumes the content that they had when it was frozen.

        Raises:
            RestoreError: the snapshot does not name its volumes.
        """
        for volume in _names_from_facts({"volumes": []} | restore_facts, "volumes"):
            archive = images / "volumes" / f"{validate_segment('volume', volume)}.tar"
            await fill_volume(archive, workload.uid, volume, self._paths)


def _names_from_facts(restore_facts: dict[str, Any], key: str) -> list[str]:
    """Return the names under `key` in the snapshot's manifest.

    Raises:
        RestoreError: there are none.
    """
    found = restore_facts.get(key)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise RestoreError(f"the snapshot does not say which {key} it has")
    return found


async def fill_volume(archive: Path, pod_uid: str, name: str, paths: HostPaths) -> None:
    """Fill a volume, by its name in the snapshot, of a pod whose containers do not run yet.

    What the same pod wrote there before its sandbox was recreated is removed. Idempotent; after a cancellation no
    process writes any more.

    Raises:
        RestoreError: the pod has no such volume, or the archive cannot be extracted.
    """
    folder = await asyncio.to_thread(_volume_folder, pod_uid, name, paths)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cedana_sched.runtime_handler.layer", "--volume", str(archive), str(folder),
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        _, output = await process.communicate()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the child in which it writes
            await process.wait()
    if process.returncode:
        words = output.decode(errors="replace").strip()
        raise RestoreError(f"volume {name} cannot be filled: {words}", evidence=tuple(words.splitlines()))


def _volume_folder(pod_uid: str, name: str, paths: HostPaths) -> Path:
    if name == SHARED_MEMORY:
        return _shared_memory(pod_uid, paths)
    folder = paths.pod_folder(pod_uid) / _EMPTY_DIRS / validate_segment("volume", name)
    if folder.is_symlink() or not folder.is_dir():
        raise RestoreError(
            f"the pod has no emptyDir volume {name} any more, which the snapshot fills",
            remedy="give the pod template the volumes that it had, or start it without the snapshot",
        )
    return folder


def _shared_memory(pod_uid: str, paths: HostPaths) -> Path:
    """Return the pod's /dev/shm on the host, which all its containers mount; the restore container runs by now."""
    for path in paths.agent_path(paths.bundles).glob("*/config.json"):
        if find_pod_uid(str(path)) != pod_uid:
            continue
        specification = msgspec.json.decode(path.read_bytes(), type=Specification)
        if (source := shared_memory_of(specification)) is not None:
            return paths.agent_path(source)
    raise RestoreError("the pod has no shared memory of its own any more, which the snapshot fills")
