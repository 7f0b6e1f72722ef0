"""Prepares the restore of a pod: fills its volumes, and makes a plan for the runtime handler."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.restoring.images import ready_images
from cedana_sched.cluster.node.restoring.kept import KeptRestores
from cedana_sched.cluster.node.restoring.known_pods import PodsOfNode
from cedana_sched.cluster.node.restoring.privilege_checks import (
    is_sidecar,
    recorded_privileges,
    refuse_other_images,
    refuse_other_service_account,
)
from cedana_sched.cluster.node.restoring.volume_filling import lay_volume
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_CONTAINER
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.segments import segment
from cedana_sched.runtime.plan import COLD, FAIL, RESTORE, ContainerPlan, Plan
from cedana_sched.snapshot.toolchain import Toolchain

LAYER = "rootfs.tar"


class Preparation:
    """Fills volumes from a snapshot, and makes plans.

    Args:
        places: of the host.
        bundles: the containers of pods.
        kept: gives the folder of the logs, and the sandbox.
        toolchain: decodes images.
        pods: the pods in the agent's informers.
        stall_seconds: how long CRIU may make no progress.
        restore_seconds: how long one container may take.
    """

    def __init__(
        self,
        places: Places,
        bundles: Bundles,
        kept: KeptRestores,
        toolchain: Toolchain,
        pods: PodsOfNode,
        *,
        stall_seconds: float,
        restore_seconds: float,
    ) -> None:
        self._places = places
        self._bundles = bundles
        self._kept = kept
        self._toolchain = toolchain
        self._pods = pods
        self._stall_seconds = stall_seconds
        self._restore_seconds = restore_seconds

    async def prepare(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> Plan:
        """Fill the volumes, and make the plan.

        Raises:
            RestoreError: the pod differs from the one that was frozen, or would have another image or account.
        """
        names = _names_in(restore_facts, "containers")
        pod = self._pods.pod(workload.uid)
        if pod is None:
            raise RestoreError("the pod is not known on this node any more")
        present = {entry.name for entry in (*pod.spec.containers, *pod.spec.init_containers)}
        running = {container.name for container in await asyncio.to_thread(self._bundles.of_pod, workload.uid)}
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
        await self.lay_volumes(workload, images, restore_facts)
        containers = {}
        for name in names:
            ready = await asyncio.to_thread(ready_images, self._toolchain, images / name)
            layer = images / name / LAYER
            containers[name] = ContainerPlan(
                images=str(images / name),
                work=str(self._kept.logs(workload.uid) / name),
                layer=str(layer) if layer.exists() else None,
                criu=ready.criu,
                locks=ready.locks,
                seconds=self._restore_seconds,
                stall_seconds=self._stall_seconds,
                privileges=privileges.get(name),
            )
        before = (entry.name for entry in pod.spec.init_containers if not is_sidecar(entry))
        done = (name for name in before if name not in {*names, RESTORE_CONTAINER})
        fails = self._pods.on_restore_failure(workload) is OnRestoreFailure.FAIL
        return Plan(
            decision=RESTORE,
            fallback=FAIL if fails else COLD,
            containers=containers,
            skip=tuple(done),
            sandbox=await asyncio.to_thread(self._kept.sandbox, workload.uid),
        )

    async def lay_volumes(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        """Give the pod's volumes the content that they had when it was frozen.

        Raises:
            RestoreError: the snapshot does not name its volumes.
        """
        for volume in _names_in({"volumes": []} | restore_facts, "volumes"):
            archive = images / "volumes" / f"{segment('volume', volume)}.tar"
            await lay_volume(archive, workload.uid, volume, self._places)


def _names_in(restore_facts: dict[str, Any], key: str) -> list[str]:
    """Return the names under `key` in the snapshot's manifest.

    Raises:
        RestoreError: there are none.
    """
    found = restore_facts.get(key)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise RestoreError(f"the snapshot does not say which {key} it has")
    return found
