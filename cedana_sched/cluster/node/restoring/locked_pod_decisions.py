"""Decisions about a pod whose containers may be restored at this very moment.

The handler holds a pod's lock (`runtime_handler.containerd_lost_containers.pod_create_lock`) from its read of the plan
until it has acted on the plan. With the lock held, no `create` is in flight: a restored container shows, and no other
is restored once the plan forbids it. So a pod is never mixed: all containers of the snapshot are restored, or none of
them runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from enum import Enum
from functools import partial
from typing import TypeVar

import structlog

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.criu_dump_options import freezer_of
from cedana_sched.cluster.node.restoring.container_results import complete_results, is_any_restored, results_of
from cedana_sched.runtime_handler import plan as plans
from cedana_sched.runtime_handler.containerd_lost_containers import pod_create_lock
from cedana_sched.runtime_handler.plan import FORGO, RESTORE, ContainerResult, Plan
from cedana_sched.snapshot import freezer

log = structlog.get_logger(__name__)

TURN_SECONDS = 0.2
"""Retry interval while a `create` is in flight; no event shows its end."""

T = TypeVar("T")


class RestoreProgress(Enum):
    """Progress of a pod's restore at a decision against it."""

    DECIDED = "no container is restored, nor will be"
    COMING_BACK = "some of its containers are restored, and the others may be"
    COMPLETE = "all are restored, or one of them was not"
    DELETED = "it was deleted, and is forgone"


class LockedPodDecisions:
    """Decides under the locks of this node's pods."""

    def __init__(self, paths: HostPaths, bundles: Bundles) -> None:
        self._paths = paths
        self._bundles = bundles

    async def replace_plan(self, pod_uid: str, folder: str, decided: Plan) -> RestoreProgress:
        """Replace the pod's plan with this one, unless a container has been restored.

        Raises:
            FreezerError: processes left by a killed `create` do not exit.
        """
        return await _with_pod_lock(folder, partial(self._replace_plan_locked, pod_uid, folder, decided))

    async def kill_partly_restored(self, pod_uid: str, folder: str, plan: Plan) -> None:
        """Kill the containers restored beside one that failed; the pod's later containers all start alike.

        Raises:
            FreezerError: some process did not exit in time.
        """
        await _with_pod_lock(folder, partial(self._kill_partly_restored_locked, pod_uid, folder, plan))

    def _replace_plan_locked(self, pod_uid: str, folder: str, decided: Plan) -> RestoreProgress:
        plan = plans.read_plan(folder)
        if plan is not None and plan.decision == FORGO:
            return RestoreProgress.DELETED
        if plan is not None and plan.decision == RESTORE:
            if complete_results(folder, plan) is not None:
                return RestoreProgress.COMPLETE
            if is_any_restored(folder, plan):
                return RestoreProgress.COMING_BACK
        plans.write_plan(folder, decided)
        self._kill_running(
            pod_uid, [name for name in decided.containers if plans.read_create_record(folder, name) is not None]
        )
        return RestoreProgress.DECIDED

    def _kill_partly_restored_locked(self, pod_uid: str, folder: str, plan: Plan) -> None:
        results = results_of(folder, plan)
        failed = next((name for name, result in results.items() if result is not None and not result.restored), None)
        if failed is None or not (is_any_restored(folder, plan) or self._restored_containers(pod_uid, plan.containers)):
            return
        why = f"container {failed}, which the snapshot has as well, was not restored"
        changed_files = [note for result in results.values() if result is not None for note in result.notes]
        changed = any(result is not None and result.files_changed for result in results.values())
        cold = plan.may_start_cold(files_changed=changed)
        log.warning("restored containers are ended", pod=pod_uid, reason=why, changed_files=changed_files)
        for name, result in results.items():
            known = result if result is not None and not result.restored else ContainerResult(restored=False, why=why)
            if name == failed and changed_files:
                known = known._replace(why=f"{known.why}; files of the pod: {'; '.join(changed_files)}")
            plans.write_result(folder, name, known._replace(cold=cold, files_changed=changed))
            plans.remove_create_record(folder, name)
        self._kill_running(pod_uid, self._restored_containers(pod_uid, plan.containers))

    def _restored_containers(self, pod_uid: str, names: Collection[str]) -> list[str]:
        found = self._bundles.workload_containers(pod_uid)
        return [container.name for container in found if container.is_restored and container.name in names]

    def _kill_running(self, pod_uid: str, names: Collection[str]) -> None:
        """Kill the running ones of these containers."""
        for container in self._bundles.workload_containers(pod_uid) if names else ():
            if container.name in names:
                freezer.kill(self._paths.agent_path(freezer_of(container.state)))


async def _with_pod_lock(folder: str, act: Callable[[], T]) -> T:
    """Run `act` in a thread while no `create` of the pod is in flight."""

    def take() -> T:
        with pod_create_lock(folder, wait=False):
            return act()

    while True:
        try:
            return await asyncio.to_thread(take)
        except BlockingIOError:  # a thread that blocked would be one less for all others
            await asyncio.sleep(TURN_SECONDS)
