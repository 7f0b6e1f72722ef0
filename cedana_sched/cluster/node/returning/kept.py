"""What a node keeps of each pod's return, and for which of its beginnings: the plan, the results, the logs.

What is there of an earlier return, or of a sandbox that is gone, says nothing to the next.
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
from cedana_sched.cluster.node.returning.outcomes import results_of
from cedana_sched.cluster.node.returning.restore_container import RestoreContainer
from cedana_sched.cluster.node.returning.served import BegunAgainError, ServedBeginnings
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.segments import segment
from cedana_sched.runtime import plan as plans
from cedana_sched.runtime.kernel import detach_below
from cedana_sched.runtime.plan import Plan

_LOGS = "logs"
_SERVED = "served"


class KeptReturns:
    """The folders of all pods of a node.

    Args:
        places: of the host.
        bundles: which containers of a pod there are.
        state: our folder on the host's /run, as the agent and the host see it; plans and results lie below it.
        data: our folder on the host's disk, likewise; logs lie below it, and which beginnings were served.
    """

    def __init__(self, places: Places, bundles: Bundles, state: Path, data: Path) -> None:
        self._places = places
        self._bundles = bundles
        self._state = state
        self._logs = data / _LOGS
        self.served = ServedBeginnings(data / _SERVED)

    def folder(self, pod_uid: str) -> str:
        """Where its plan and its results lie."""
        return plans.pod_folder(str(self._state), segment("pod", pod_uid))

    def logs(self, pod_uid: str) -> Path:
        """Where CRIU writes of its containers, a folder each."""
        return self._logs / segment("pod", pod_uid)

    def plan(self, pod_uid: str) -> Plan | None:
        """What was decided for the pod as it runs now; None where nothing was."""
        plan = plans.read_plan(self.folder(pod_uid))
        if plan is None or not plan.sandbox or (sandbox := self._bundles.sandbox_id(pod_uid)) is None:
            return plan
        return plan if plan.sandbox == sandbox else None

    def sandbox(self, pod_uid: str) -> str:
        """The one that is served, else the one that runs; empty when there is none."""
        served = self.served.of(pod_uid)
        return served.sandbox if served is not None else self._bundles.sandbox_id(pod_uid) or ""

    def clear(self, pod_uid: str) -> None:
        """Nothing that was found out about the pod in an earlier sandbox counts in this one."""
        detach_below(str(self.logs(pod_uid)))
        shutil.rmtree(self.folder(pod_uid), ignore_errors=True)
        with contextlib.suppress(RestoreError):  # nothing of it is mounted: nothing is left there
            RestoreContainer(pod_uid, self._places).forget_run()

    async def assign(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the pod's beginning to this return, once there is one. What is there of an earlier one is removed.

        Raises:
            BegunAgainError: this return has served a beginning that is over.
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
        return self.served.of(pod_uid) is not None or self.plan(pod_uid) is not None

    def assign_next(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the restore container that runs, if it is another one, in the same sandbox.

        Raises:
            BegunAgainError: it is in another one.
        """
        if (beginning := self._bundles.beginning(pod_uid)) is not None:
            self.served.assign(restore_uid, pod_uid, beginning)

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
