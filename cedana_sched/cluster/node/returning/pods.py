"""Pods that return to this node: continued by the runtime handler, started cold, or given up.

The pod's restore container holds back its other containers until the agent has decided. By then the pod's volumes are
as they were, and a plan lies in the pod's folder below the state on the host's /run, where the handler reads it
(`cedana_sched.runtime.plan`). Everything is found there again by an agent that is started anew, at any instant:

    no plan             nothing has been decided; volumes are laid again from the beginning
    plan                it stands, until another order comes or the pod is deleted; it is written for the restore
                        container again, which changes nothing
    plan and results    so many of its containers have had their turn; those that containerd has lost have not
    another sandbox     than the plan's: the pod begins again, and nothing has been decided

Which return has decided is known too (`served`): what is there of an earlier one says nothing to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.images import ready_images
from cedana_sched.cluster.node.returning.latest_order import LatestOrder
from cedana_sched.cluster.node.returning.network import PodConnections
from cedana_sched.cluster.node.returning.outcomes import (
    complete,
    error_of,
    results_of,
    wait_complete_or_lost,
    wait_while_coming_back,
)
from cedana_sched.cluster.node.returning.privileges import (
    is_sidecar,
    recorded_privileges,
    refuse_other_images,
    refuse_other_service_account,
    refused_after_all,
)
from cedana_sched.cluster.node.returning.restore_container import RestoreContainer
from cedana_sched.cluster.node.returning.served import BegunAgainError, ServedBeginnings
from cedana_sched.cluster.node.returning.turns import Standing, Turns
from cedana_sched.cluster.node.returning.volumes import lay_volume
from cedana_sched.kube.objects import Pod
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_CONTAINER, RESTORES
from cedana_sched.model.policy import OnRestoreFailure
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.segments import segment
from cedana_sched.runtime import plan as plans
from cedana_sched.runtime.kernel import detach_below
from cedana_sched.runtime.plan import COLD, FAIL, FORGO, RESTORE, ContainerPlan, Plan, Result
from cedana_sched.runtime.signs import STALL_SECONDS
from cedana_sched.snapshot.toolchain import Toolchain

log = structlog.get_logger(__name__)

LAYER = "rootfs.tar"
RESTORE_SECONDS = 110.0
_LOGS = "logs"
_SERVED = "served"


class PodsOfNode(Protocol):
    """What the agent's watches cache."""

    def pod(self, uid: str) -> Pod | None:
        """A pod of this node; None when it is not known (any more)."""
        ...

    async def wait_ended(self, uid: str) -> None:
        """Return when the pod has finished, or is not known any more; one that is only being deleted is still there."""
        ...

    def on_restore_failure(self, workload: WorkloadRef) -> OnRestoreFailure:
        """What the policy says about a pod that cannot be continued."""
        ...

    def image_may_change(self, workload: WorkloadRef) -> bool:
        """Whether the policy lets it continue in containers of other images."""
        ...

    def service_account_may_change(self, workload: WorkloadRef) -> bool:
        """Whether the policy lets it continue under another ServiceAccount."""
        ...


class ReturningPods:
    """Implements `PodReturns`.

    Args:
        places: of the host.
        state: our folder on the host's /run, as the agent and the host see it.
        data: our folder on the host's disk, likewise; logs lie below it, and which beginnings were served.
        toolchain: decodes images.
        pods: what the agent's watches cache.
        stall_seconds: how long CRIU may go without a sign of life.
        restore_seconds: how long one container may take; less than the kubelet's `runtimeRequestTimeout`.
        wait_containerd: returns once containerd answers, or after a minute without it; an end that it does not see is a
            failure of the pod.
    """

    def __init__(
        self,
        places: Places,
        state: Path,
        data: Path,
        toolchain: Toolchain,
        pods: PodsOfNode,
        stall_seconds: float = STALL_SECONDS,
        restore_seconds: float = RESTORE_SECONDS,
        wait_containerd: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._stall_seconds = stall_seconds
        self._wait_containerd = wait_containerd
        self._places = places
        self._state = state
        self._logs = data / _LOGS
        self._toolchain = toolchain
        self._pods = pods
        self._restore_seconds = restore_seconds
        self._connections = PodConnections(places, toolchain)
        self._bundles = Bundles(places)
        self._turns = Turns(places, self._bundles)
        self.served = ServedBeginnings(data / _SERVED)
        self._orders = LatestOrder(pods.wait_ended)

    # --- PodReturns

    async def was_restored(self, workload: WorkloadRef) -> bool:
        """Whether all containers that its plan continues have come back."""
        folder = self._folder(workload.uid)
        plan = await asyncio.to_thread(self._plan, workload.uid)
        if plan is None or not plan.containers:
            return False
        restored = all(result is not None and result.restored for result in results_of(folder, plan).values())
        if restored:  # an agent that died just then may have left them
            await asyncio.to_thread(self._connections.release, workload.uid, plan.containers)
        return restored

    async def continue_from(
        self, restore_uid: str, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]
    ) -> None:
        """Continue a pod; returns when every container of the snapshot runs.

        Raises:
            BegunAgainError: this return has served a beginning of the pod that is over.
            RestoreError: one of them did not come back, or the pod ended before; `evidence` has CRIU's own words.
        """
        await self._orders.run(workload.uid, self._continue(restore_uid, workload, images, restore_facts))

    async def start_cold(self, restore_uid: str, workload: WorkloadRef, why: str | None) -> None:
        """Let a pod begin anew; `why` is in its restore container's log.

        Raises:
            BegunAgainError: this return has served a beginning of the pod that is over.
        """
        await self._end_waiting(restore_uid, workload, COLD, why or "there is no snapshot of it")

    async def give_up(self, restore_uid: str, workload: WorkloadRef, why: str) -> None:
        """Fail a pod that waits.

        Raises:
            BegunAgainError: this return has served a beginning of the pod that is over.
        """
        await self._end_waiting(restore_uid, workload, FAIL, why)

    # --- beside it

    async def forgo(self, pod_uid: str) -> None:
        """Do not continue a pod that is deleted on its way back: its successor would do again what it did meanwhile."""
        folder = self._folder(pod_uid)
        plan = await asyncio.to_thread(self._plan, pod_uid)
        if plan is not None and plan.decision == RESTORE and complete(folder, plan) is None:
            decided = plan._replace(decision=FORGO, why="its pod has been deleted")
            await asyncio.to_thread(plans.write_plan, folder, decided)

    async def tell(self, workload: WorkloadRef, line: str) -> None:
        """Show a line in the log of the pod's restore container, once it runs."""
        container = RestoreContainer(workload.uid, self._places)
        await container.wait_until_running()
        await asyncio.to_thread(container.tell, line)

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """Remove what is kept of pods that are no more, but the logs of failures."""
        for folder in (self._state / "pods").glob("*"):
            if folder.name not in pod_uids:
                self._forget(folder)
        self.served.forget_all_but(pod_uids)

    def _forget(self, folder: Path) -> None:
        plan = plans.read_plan(str(folder))
        results = results_of(str(folder), plan).values() if plan else ()
        if all(result is not None and result.restored for result in results):
            detach_below(str(self._logs / folder.name))
            shutil.rmtree(self._logs / folder.name, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)

    # --- how

    async def _continue(
        self, restore_uid: str, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]
    ) -> None:
        folder = self._folder(workload.uid)
        container = RestoreContainer(workload.uid, self._places)
        await self._assign(restore_uid, workload.uid)
        plan = await asyncio.to_thread(self._plan, workload.uid)
        if plan is None or (plan.decision == FAIL and not any(results_of(folder, plan).values())):
            await asyncio.to_thread(self._clear, workload.uid)
            await container.wait_until_running()
            plan = await self._prepare(workload, images, restore_facts)
            await asyncio.to_thread(plans.write_plan, folder, plan)
            if (pod := self._pods.pod(workload.uid)) is not None and pod.metadata.deletion_timestamp is not None:
                await self.forgo(workload.uid)
                plan = plan._replace(decision=FORGO)
        if plan.decision == FORGO:
            await self._pods.wait_ended(workload.uid)
            raise RestoreError("the pod was deleted before it had come back")
        if plan.decision != RESTORE:
            raise RestoreError(f"it has been decided before that this pod does not continue: {plan.why}")
        await asyncio.to_thread(self._connections.hold, workload.uid, plan.containers)
        await self._end(container, partial(self._assign_next, restore_uid, workload.uid), RESTORE, plan.why)
        results = await self._wait_complete(folder, plan, workload, images, restore_facts)
        running = await asyncio.to_thread(self._bundles.of_pod, workload.uid)
        results = await asyncio.to_thread(refused_after_all, folder, plan, results, running, self._places)
        await asyncio.to_thread(self._connections.release, workload.uid, plan.containers)
        for name, result in results.items():
            if not result.restored:
                await self._turns.end_together(workload.uid, folder, plan)
                await asyncio.to_thread(self._connections.unlock, workload.uid)
                raise error_of(name, result)
        log.info("pod continued", pod=workload.name, namespace=workload.namespace, containers=sorted(results))

    async def _wait_complete(
        self, folder: str, plan: Plan, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]
    ) -> dict[str, Result]:
        """Wait until all have come back, or one did not; for those that containerd has lost, lay the volumes anew."""
        while True:
            results, lost = await wait_complete_or_lost(folder, plan)
            if results is not None:
                return results
            log.warning("containerd has lost what had come back: once more", pod=workload.name, containers=lost)
            await self._lay_volumes(workload, images, restore_facts)
            for name in lost:
                await asyncio.to_thread(plans.forget_lost, folder, name)

    async def _lay_volumes(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> None:
        for volume in _names_in({"volumes": []} | restore_facts, "volumes"):
            archive = images / "volumes" / f"{segment('volume', volume)}.tar"
            await lay_volume(archive, workload.uid, volume, self._places)

    async def _prepare(self, workload: WorkloadRef, images: Path, restore_facts: dict[str, Any]) -> Plan:
        """Lay the volumes, and make the plan.

        Raises:
            RestoreError: the pod is not the one that was frozen, or would have another image or account.
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
        await self._lay_volumes(workload, images, restore_facts)
        containers = {}
        for name in names:
            ready = await asyncio.to_thread(ready_images, self._toolchain, images / name)
            layer = images / name / LAYER
            containers[name] = ContainerPlan(
                images=str(images / name),
                work=str(self._logs / segment("pod", workload.uid) / name),
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
            sandbox=await asyncio.to_thread(self._sandbox, workload.uid),
        )

    async def _assign(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the pod's beginning to this return, once there is one. What is there of an earlier one is removed.

        Raises:
            BegunAgainError: this return has served a beginning that is over.
        """
        is_mine = await asyncio.to_thread(self._is_mine, restore_uid, pod_uid)
        if is_mine and await asyncio.to_thread(self._is_decided, pod_uid):
            return
        container = RestoreContainer(pod_uid, self._places)
        beginning = await container.wait_for_run(partial(self._bundles.beginning, pod_uid))
        if not is_mine:
            await asyncio.to_thread(self._clear, pod_uid)
        await asyncio.to_thread(self.served.assign, restore_uid, pod_uid, beginning)

    def _is_mine(self, restore_uid: str, pod_uid: str) -> bool:
        """Whether what was decided for the pod, if anything was, is this return's.

        Raises:
            BegunAgainError: it is, for a sandbox that is gone.
        """
        served = self.served.of(pod_uid)
        if served is None:  # or that of an agent that did not write it down
            return True
        if served.restore != restore_uid:
            return False
        if self._bundles.sandbox_id(pod_uid) != served.sandbox:
            raise BegunAgainError("the pod's sandbox, for which this was ordered, is gone")
        return True

    def _is_decided(self, pod_uid: str) -> bool:
        return self.served.of(pod_uid) is not None or self._plan(pod_uid) is not None

    def _assign_next(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the restore container that runs, if it is another one, in the same sandbox.

        Raises:
            BegunAgainError: it is in another one.
        """
        if (beginning := self._bundles.beginning(pod_uid)) is not None:
            self.served.assign(restore_uid, pod_uid, beginning)

    async def _end_waiting(self, restore_uid: str, workload: WorkloadRef, decision: str, why: str) -> None:
        """Decide for a pod that is not to continue. One that continued, or began anew, is left alone.

        One that comes back this moment is waited for: what runs from its snapshot would be lost, or be beside others
        that began anew.
        """
        pod = self._pods.pod(workload.uid)
        if pod is None or RESTORES not in pod.metadata.annotations:
            return  # it has nothing that waits
        is_mine = await asyncio.to_thread(self._is_mine, restore_uid, workload.uid)
        plan = await asyncio.to_thread(self._plan, workload.uid) if is_mine else None
        planned: Mapping[str, ContainerPlan] = plan.containers if plan else {}
        decided = Plan(decision, why, containers=planned, sandbox=await asyncio.to_thread(self._sandbox, workload.uid))
        if plan is not None and not await self._is_decided_against(workload, plan, decided):
            return
        await self._orders.run(workload.uid, self._decide(restore_uid, workload, decided))

    async def _is_decided_against(self, workload: WorkloadRef, plan: Plan, decided: Plan) -> bool:
        """Write a plan in the place of the one that there is; its restore container may have ended before.

        False: there is nothing to decide any more.
        """
        folder = self._folder(workload.uid)
        while True:
            standing = await self._turns.decide(workload.uid, folder, decided)
            if standing is Standing.DECIDED:
                return True
            if standing is Standing.DELETED:  # what comes alive this very moment must not run
                await self._pods.wait_ended(workload.uid)
                return False
            if standing is Standing.COMPLETE:
                await asyncio.to_thread(self._connections.release, workload.uid, plan.containers)
                await self._turns.end_together(workload.uid, folder, plan)
                return False
            log.warning("pod is coming back, and waited for", pod=workload.name, instead_of=decided.decision)
            await self._orders.run(workload.uid, wait_while_coming_back(folder, plan))

    async def _decide(self, restore_uid: str, workload: WorkloadRef, plan: Plan) -> None:
        container = RestoreContainer(workload.uid, self._places)
        await self._assign(restore_uid, workload.uid)
        if await asyncio.to_thread(self._plan, workload.uid) is None:
            await asyncio.to_thread(self._clear, workload.uid)
            await container.wait_until_running()
        decided = plan._replace(sandbox=await asyncio.to_thread(self._sandbox, workload.uid))
        await asyncio.to_thread(plans.write_plan, self._folder(workload.uid), decided)
        await self._end(container, partial(self._assign_next, restore_uid, workload.uid), plan.decision, plan.why)

    async def _end(self, container: RestoreContainer, assign_next: Callable[[], None], decision: str, why: str) -> None:
        if self._wait_containerd is not None:
            await self._wait_containerd()
        await container.decide(decision, why, assign_next)

    def _plan(self, pod_uid: str) -> Plan | None:
        """What was decided for the pod as it runs now; None where nothing was."""
        plan = plans.read_plan(self._folder(pod_uid))
        if plan is None or not plan.sandbox or (sandbox := self._bundles.sandbox_id(pod_uid)) is None:
            return plan
        return plan if plan.sandbox == sandbox else None

    def _sandbox(self, pod_uid: str) -> str:
        """The one that is served, else the one that runs; empty when there is none."""
        served = self.served.of(pod_uid)
        return served.sandbox if served is not None else self._bundles.sandbox_id(pod_uid) or ""

    def _clear(self, pod_uid: str) -> None:
        """Nothing that was found out about the pod in an earlier sandbox counts in this one."""
        detach_below(str(self._logs / segment("pod", pod_uid)))
        shutil.rmtree(self._folder(pod_uid), ignore_errors=True)
        with contextlib.suppress(RestoreError):  # nothing of it is mounted: nothing is left there
            RestoreContainer(pod_uid, self._places).forget_run()

    def _folder(self, pod_uid: str) -> str:
        return plans.pod_folder(str(self._state), segment("pod", pod_uid))


def _names_in(restore_facts: dict[str, Any], key: str) -> list[str]:
    """What the snapshot's manifest says under `key`.

    Raises:
        RestoreError: no names.
    """
    found = restore_facts.get(key)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise RestoreError(f"the snapshot does not say which {key} it has")
    return found
