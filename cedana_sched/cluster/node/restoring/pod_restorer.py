"""Restores pods on this node through the runtime handler, starts them cold, or fails them.

The pod's restore container blocks its other containers until the agent has decided. By then the pod's volumes are
filled, and a plan is in the pod's folder below the state on the host's /run, where the handler reads it
(`cedana_sched.runtime_handler.plan`). A restarted agent resumes from these files, at any instant:

    no plan             nothing has been decided; volumes are filled again from the start
    plan                it stands, until another order arrives or the pod is deleted; it is written for the restore
                        container again, which is idempotent
    plan and results    containers with a result were restored or have failed, except those that containerd has lost
    another sandbox     than the plan's: a new incarnation of the pod, for which nothing has been decided

The Restore that has decided is recorded as well (`restore_states`): files of an earlier Restore have no effect on the
next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from cedana_sched.agent.workload_runtime import UNKNOWN_ORIGIN, SnapshotOrigin
from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.container_results import (
    changed_file_notes,
    complete_results,
    error_of,
    results_of,
    wait_complete_or_lost,
    wait_while_restoring,
)
from cedana_sched.cluster.node.restoring.intra_pod_connections import IntraPodConnections
from cedana_sched.cluster.node.restoring.locked_pod_decisions import LockedPodDecisions, RestoreProgress
from cedana_sched.cluster.node.restoring.node_pod_lookup import NodePodLookup
from cedana_sched.cluster.node.restoring.pod_order_serializer import PodOrderSerializer
from cedana_sched.cluster.node.restoring.privilege_checks import fail_overprivileged
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.cluster.node.restoring.restore_preparation import RestorePreparation
from cedana_sched.cluster.node.restoring.restore_states import IncarnationRecords, RestoreStates
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_IDENTITY
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler import plan as plans
from cedana_sched.runtime_handler.plan import COLD, FAIL, FORGO, RESTORE, ContainerPlan, ContainerResult, Plan
from cedana_sched.runtime_handler.progress_signs import STALL_SECONDS
from cedana_sched.snapshot.criu_toolchain import Toolchain

log = structlog.get_logger(__name__)

RESTORE_SECONDS = 110.0


class PodRestorer:
    """Implements `WorkloadRestorer`. Every call is idempotent.

    Args:
        paths: of the host.
        state: our folder on the host's /run, as the agent and the host see it.
        data: our folder on the host's disk, likewise; logs and the records of served incarnations are below it.
        toolchain: decodes images.
        pods: the pods in the agent's informers.
        stall_seconds: how long CRIU may make no progress.
        restore_seconds: how long one container may take; less than the kubelet's `runtimeRequestTimeout`.
        wait_containerd: returns once containerd answers, or after a minute without an answer; an exit that containerd
            misses is a failure of the pod.
    """

    def __init__(
        self,
        paths: HostPaths,
        state: Path,
        data: Path,
        toolchain: Toolchain,
        pods: NodePodLookup,
        stall_seconds: float = STALL_SECONDS,
        restore_seconds: float = RESTORE_SECONDS,
        wait_containerd: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._wait_containerd = wait_containerd
        self._paths = paths
        self._pods = pods
        self._connections = IntraPodConnections(paths, toolchain)
        self._bundles = Bundles(paths)
        self._turns = LockedPodDecisions(paths, self._bundles)
        self._kept = RestoreStates(paths, self._bundles, state, data)
        self._preparation = RestorePreparation(
            paths,
            self._bundles,
            self._kept,
            toolchain,
            pods,
            stall_seconds=stall_seconds,
            restore_seconds=restore_seconds,
        )
        self._orders = PodOrderSerializer(pods.wait_ended)

    async def was_restored(self, workload: WorkloadRef) -> bool:
        """Return whether all containers of the pod's plan have been restored."""
        folder = self._kept.folder(workload.uid)
        plan = await asyncio.to_thread(self._kept.current_plan_of, workload.uid)
        if plan is None or not plan.containers:
            return False
        restored = all(result is not None and result.restored for result in results_of(folder, plan).values())
        if restored:  # an agent that was killed just then may have left them held
            await asyncio.to_thread(self._connections.release, workload.uid, plan.containers)
        return restored

    async def restore(
        self,
        restore_uid: str,
        workload: WorkloadRef,
        images: Path,
        restore_facts: dict[str, Any],
        origin: SnapshotOrigin = UNKNOWN_ORIGIN,
    ) -> None:
        """Restore a pod; returns when every container of the snapshot runs.

        `restore_facts` is what `PodRuntime` wrote: `containers`, names, and `volumes`, names as in `volumes_of`; for a
        pod that was frozen also the keys named in `containers.privileges`.

        Raises:
            IncarnationEndedError: this Restore has served an incarnation of the pod that has ended.
            FilesChangedError: a container was not restored, because files have changed since the snapshot.
            RestoreError: a container was not restored, or the pod ended before; `evidence` has CRIU's log lines.
        """
        await self._orders.run(workload.uid, self._restore_pod(restore_uid, workload, images, restore_facts, origin))

    async def describe_changed_files(self, workload: WorkloadRef) -> tuple[str, ...]:
        """Return notes on files that had changed since the snapshot of a restored pod."""
        plan = await asyncio.to_thread(self._kept.current_plan_of, workload.uid)
        if plan is None:
            return ()
        return await asyncio.to_thread(changed_file_notes, self._kept.folder(workload.uid), plan)

    async def start_cold(self, restore_uid: str, workload: WorkloadRef, why: str | None) -> None:
        """Start a pod cold; `why` is in its restore container's log.

        Raises:
            IncarnationEndedError: this Restore has served an incarnation of the pod that has ended.
        """
        await self._decide_without_restore(restore_uid, workload, COLD, why or "there is no snapshot of it")

    async def fail_workload(self, restore_uid: str, workload: WorkloadRef, why: str) -> None:
        """Fail a pod that waits.

        Raises:
            IncarnationEndedError: this Restore has served an incarnation of the pod that has ended.
        """
        await self._decide_without_restore(restore_uid, workload, FAIL, why)

    # --- beside it

    async def cancel_restore(self, pod_uid: str) -> None:
        """Cancel the restore of a pod that is deleted: the pod's successor would repeat its work since the restore."""
        folder = self._kept.folder(pod_uid)
        plan = await asyncio.to_thread(self._kept.current_plan_of, pod_uid)
        if plan is not None and plan.decision == RESTORE and complete_results(folder, plan) is None:
            decided = plan._replace(decision=FORGO, why="its pod has been deleted")
            await asyncio.to_thread(plans.write_plan, folder, decided)

    @property
    def served_incarnations(self) -> IncarnationRecords:
        """The Restore that has served each pod's incarnation."""
        return self._kept.served

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """See `RestoreStates`."""
        self._kept.forget_all_but(pod_uids)

    # --- internals

    async def _restore_pod(
        self,
        restore_uid: str,
        workload: WorkloadRef,
        images: Path,
        restore_facts: dict[str, Any],
        origin: SnapshotOrigin,
    ) -> None:
        folder = self._kept.folder(workload.uid)
        container = RestoreContainerMessages(workload.uid, self._paths)
        await self._kept.assign_incarnation(restore_uid, workload.uid)
        plan = await asyncio.to_thread(self._kept.current_plan_of, workload.uid)
        if plan is None or (plan.decision == FAIL and not any(results_of(folder, plan).values())):
            await asyncio.to_thread(self._kept.clear, workload.uid)
            await container.wait_until_running()
            plan = await self._preparation.fill_volumes_and_plan(workload, images, restore_facts, origin)
            await asyncio.to_thread(plans.write_plan, folder, plan)
            if (pod := self._pods.pod(workload.uid)) is not None and pod.metadata.deletion_timestamp is not None:
                await self.cancel_restore(workload.uid)
                plan = plan._replace(decision=FORGO)
        if plan.decision == FORGO:
            await self._pods.wait_ended(workload.uid)
            raise RestoreError("the pod was deleted before it was restored")
        if plan.decision != RESTORE:
            raise RestoreError(f"it has been decided before that this pod does not continue: {plan.why}")
        await asyncio.to_thread(self._connections.hold, workload.uid, plan.containers)
        await self._end_restore_container(
            container, partial(self._kept.assign_next, restore_uid, workload.uid), RESTORE, plan.why
        )
        results = await self._wait_until_restored(folder, plan, workload, images, restore_facts)
        running = await asyncio.to_thread(self._bundles.workload_containers, workload.uid)
        results = await asyncio.to_thread(fail_overprivileged, folder, plan, results, running, self._paths)
        await asyncio.to_thread(self._connections.release, workload.uid, plan.containers)
        for name, result in sorted(results.items(), key=lambda item: not item[1].files_changed):  # that decides
            if not result.restored:
                await self._turns.kill_partly_restored(workload.uid, folder, plan)
                await asyncio.to_thread(self._connections.unlock_network, workload.uid)
                raise error_of(name, result)
        log.info("pod continued", pod=workload.name, namespace=workload.namespace, containers=sorted(results))

    async def _wait_until_restored(
        self, folder: str, plan: Plan, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]
    ) -> dict[str, ContainerResult]:
        """Wait until all containers are restored, or one failed; fill the volumes again for lost containers."""
        while True:
            results, lost = await wait_complete_or_lost(folder, plan)
            if results is not None:
                return results
            log.warning("containerd has lost restored containers: retried", pod=workload.name, containers=lost)
            await self._preparation.fill_volumes(workload, images, restore_facts)
            for name in lost:
                await asyncio.to_thread(plans.unmark_lost, folder, name)

    async def _decide_without_restore(self, restore_uid: str, workload: WorkloadRef, decision: str, why: str) -> None:
        """Decide for a pod that is not to be restored. A pod that was restored, or started cold, is left alone.

        A restore in progress is awaited: the work of its processes would be lost, or they would run beside containers
        that started cold.
        """
        pod = self._pods.pod(workload.uid)
        if pod is None or RESTORE_IDENTITY not in pod.metadata.annotations:
            return  # it has no restore container that waits
        is_mine = await asyncio.to_thread(self._kept.is_for_restore, restore_uid, workload.uid)
        plan = await asyncio.to_thread(self._kept.current_plan_of, workload.uid) if is_mine else None
        planned: Mapping[str, ContainerPlan] = plan.containers if plan else {}
        decided = Plan(
            decision, why, containers=planned, sandbox=await asyncio.to_thread(self._kept.sandbox_id_of, workload.uid)
        )
        if plan is not None and not await self._replace_plan_if_undecided(workload, plan, decided):
            return
        await self._orders.run(workload.uid, self._write_plan_and_decide(restore_uid, workload, decided))

    async def _replace_plan_if_undecided(self, workload: WorkloadRef, plan: Plan, decided: Plan) -> bool:
        """Replace the pod's present plan; its restore container may have ended before.

        False: there is nothing left to decide.
        """
        folder = self._kept.folder(workload.uid)
        while True:
            standing = await self._turns.replace_plan(workload.uid, folder, decided)
            if standing is RestoreProgress.DECIDED:
                return True
            if standing is RestoreProgress.DELETED:  # a container that is restored at this moment must not run
                await self._pods.wait_ended(workload.uid)
                return False
            if standing is RestoreProgress.COMPLETE:
                await asyncio.to_thread(self._connections.release, workload.uid, plan.containers)
                await self._turns.kill_partly_restored(workload.uid, folder, plan)
                return False
            log.warning("pod is being restored, and waited for", pod=workload.name, instead_of=decided.decision)
            await self._orders.run(workload.uid, wait_while_restoring(folder, plan))

    async def _write_plan_and_decide(self, restore_uid: str, workload: WorkloadRef, plan: Plan) -> None:
        container = RestoreContainerMessages(workload.uid, self._paths)
        await self._kept.assign_incarnation(restore_uid, workload.uid)
        if await asyncio.to_thread(self._kept.current_plan_of, workload.uid) is None:
            await asyncio.to_thread(self._kept.clear, workload.uid)
            await container.wait_until_running()
        decided = plan._replace(sandbox=await asyncio.to_thread(self._kept.sandbox_id_of, workload.uid))
        await asyncio.to_thread(plans.write_plan, self._kept.folder(workload.uid), decided)
        await self._end_restore_container(
            container, partial(self._kept.assign_next, restore_uid, workload.uid), plan.decision, plan.why
        )

    async def _end_restore_container(
        self, container: RestoreContainerMessages, assign_next: Callable[[], None], decision: str, why: str
    ) -> None:
        if self._wait_containerd is not None:
            await self._wait_containerd()
        await container.end_with_decision(decision, why, assign_next)
