"""State of each pod's restore on a node, and the incarnation that it belongs to: plan, results, logs.

State of an earlier Restore, or of a sandbox that is gone, is stale and has no effect on the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Collection
from functools import partial
from pathlib import Path

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.restoring.outcomes import results_of
from cedana_sched.cluster.node.restoring.restore_container import RestoreContainer
from cedana_sched.cluster.node.restoring.served import BegunAgainError, ServedBeginnings
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.segments import segment
from cedana_sched.runtime import plan as plans
from cedana_sched.runtime.kernel import detach_below
from cedana_sched.runtime.plan import Plan

_LOGS = "logs"
_SERVED = "served"


class KeptRestores:
    """The folders of all pods of a node.

    Args:
        places: of the host.
        bundles: the containers of pods.
        state: our folder on the host's /run, as the agent and the host see it; plans and results are below it.
        data: our folder on the host's disk, likewise; logs and the records of served incarnations are below it.
    """

    def __init__(self, places: Places, bundles: Bundles, state: Path, data: Path) -> None:
        self._places = places
        self._bundles = bundles
        self._state = state
        self._logs = data / _LOGS
        self.served = ServedBeginnings(data / _SERVED)

    def folder(self, pod_uid: str) -> str:
        """Return the folder of a pod's plan and results."""
        return plans.pod_folder(str(self._state), segment("pod", pod_uid))

    def logs(self, pod_uid: str) -> Path:
        """Return the folder of CRIU's logs of a pod, which has a folder for each container."""
        return self._logs / segment("pod", pod_uid)

    def plan(self, pod_uid: str) -> Plan | None:
        """Return the plan for the pod's current sandbox; None if nothing is decided."""
        plan = plans.read_plan(self.folder(pod_uid))
        if plan is None or not plan.sandbox or (sandbox := self._bundles.sandbox_id(pod_uid)) is None:
            return plan
        return plan if plan.sandbox == sandbox else None

    def sandbox(self, pod_uid: str) -> str:
        """Return the sandbox that is served, else the running one; empty if there is none."""
        served = self.served.of(pod_uid)
        return served.sandbox if served is not None else self._bundles.sandbox_id(pod_uid) or ""

    def clear(self, pod_uid: str) -> None:
        """Remove the pod's state of an earlier sandbox."""
        detach_below(str(self.logs(pod_uid)))
        shutil.rmtree(self.folder(pod_uid), ignore_errors=True)
        with contextlib.suppress(RestoreError):  # its volume is not mounted: nothing is left there
            RestoreContainer(pod_uid, self._places).forget_run()

    async def assign(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the pod's incarnation to this Restore, once it has begun. State of an earlier Restore is removed.

        Raises:
            BegunAgainError: this Restore has served an incarnation that has ended.
        """
        is_mine = await asyncio.to_thread(self.is_mine, restore_uid, pod_uid)
        if is_mine and await asyncio.to_thread(self._is_decided, pod_uid):
            return
        container = RestoreContainer(pod_uid, self._places)
        beginning = await container.wait_for_run(partial(self._bundles.beginning, pod_uid))
        if not is_mine:
            await asyncio.to_thread(self.clear, pod_uid)
        await asyncio.to_thread(self.served.assign, restore_uid, pod_uid, beginning)

    def is_mine(self, restore_uid: str, pod_uid: str) -> bool:
        """Return whether what is decided for the pod, if anything, was decided for this Restore.

        Raises:
            BegunAgainError: it was, for a sandbox that is gone.
        """
        served = self.served.of(pod_uid)
        if served is None:  # or decided by an agent that did not record it
            return True
        if served.restore != restore_uid:
            return False
        if self._bundles.sandbox_id(pod_uid) != served.sandbox:
            raise BegunAgainError("the pod's sandbox, for which this was ordered, is gone")
        return True

    def _is_decided(self, pod_uid: str) -> bool:
        return self.served.of(pod_uid) is not None or self.plan(pod_uid) is not None

    def assign_next(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the running restore container to this Restore, if it is a new one in the same sandbox.

        Raises:
            BegunAgainError: it is in another sandbox.
        """
        if (beginning := self._bundles.beginning(pod_uid)) is not None:
            self.served.assign(restore_uid, pod_uid, beginning)

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """Remove the state of pods that no longer exist, except the logs of failures."""
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
