"""State of each pod's restore on a node, and the incarnation that it belongs to: plan, results, logs.

State of an earlier Restore, or of a sandbox that is gone, is stale and has no effect on the next one.

A new incarnation of a pod begins whenever its restore container is created again: in another sandbox, after its node
has rebooted or its sandbox has died, or in the same one after the restore container has failed. A Restore serves one
incarnation. Which one is recorded on the node's disk, before anything is decided for the incarnation: the record
outlives the agent, and a reboot, so that a restarted agent finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Collection
from functools import partial
from pathlib import Path

import msgspec

from cedana_sched.cluster.node.containers.bundles import Bundles, Incarnation
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.container_results import results_of
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.model.errors import RestoreError, RetryableError
from cedana_sched.model.path_segment_validation import validate_segment
from cedana_sched.runtime_handler import plan as plans
from cedana_sched.runtime_handler.atomic_write import final_name, write_atomically
from cedana_sched.runtime_handler.kernel import detach_mounts_below
from cedana_sched.runtime_handler.plan import Plan


class IncarnationEndedError(RestoreError, RetryableError):
    """The served incarnation of the pod has ended: another Restore is, or will be, for the present one."""


class IncarnationRecord(msgspec.Struct, frozen=True):
    """An incarnation and its Restore."""

    restore: str
    """Uid of the Restore."""
    container: str
    sandbox: str
    """See `Incarnation`."""


class IncarnationRecords:
    """The latest record of each pod, one file each below `directory`, which is created if missing."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def record_of(self, pod_uid: str) -> IncarnationRecord | None:
        """Return the record; None if nothing is decided yet, or by an agent that did not record it."""
        try:
            return msgspec.json.decode(self._file(pod_uid).read_bytes(), type=IncarnationRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def record_assignment(self, restore_uid: str, pod_uid: str, incarnation: Incarnation) -> None:
        """Record that this Restore serves the incarnation; the record is on disk when this returns.

        Raises:
            IncarnationEndedError: this Restore serves an incarnation in another sandbox.
        """
        known = self.record_of(pod_uid)
        served = IncarnationRecord(restore_uid, incarnation.container, incarnation.sandbox)
        if known == served:
            return
        if known is not None and known.restore == restore_uid and known.sandbox != incarnation.sandbox:
            raise IncarnationEndedError("the pod has begun again meanwhile, in another sandbox")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._file(pod_uid), msgspec.json.encode(served))

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """Remove the records of pods that no longer exist."""
        for path in self._directory.glob("*"):
            if final_name(path.name) not in pod_uids:
                path.unlink(missing_ok=True)

    def _file(self, pod_uid: str) -> Path:
        return self._directory / validate_segment("pod", pod_uid)


class RestoreStates:
    """The folders of all pods of a node.

    Args:
        paths: of the host.
        bundles: the containers of pods.
        state: our folder on the host's /run, as the agent and the host see it; plans and results are below it.
        data: our folder on the host's disk, likewise; logs and the records of served incarnations are below it.
    """

    def __init__(self, paths: HostPaths, bundles: Bundles, state: Path, data: Path) -> None:
        self._paths = paths
        self._bundles = bundles
        self._state = state
        self._logs = data / "logs"
        self.served = IncarnationRecords(data / "served")

    def folder(self, pod_uid: str) -> str:
        """Return the folder of a pod's plan and results."""
        return plans.pod_folder(str(self._state), validate_segment("pod", pod_uid))

    def logs_folder(self, pod_uid: str) -> Path:
        """Return the folder of CRIU's logs of a pod, which has a folder for each container."""
        return self._logs / validate_segment("pod", pod_uid)

    def current_plan_of(self, pod_uid: str) -> Plan | None:
        """Return the plan for the pod's current sandbox; None if nothing is decided."""
        plan = plans.read_plan(self.folder(pod_uid))
        if plan is None or not plan.sandbox or (sandbox := self._bundles.sandbox_id(pod_uid)) is None:
            return plan
        return plan if plan.sandbox == sandbox else None

    def sandbox_id_of(self, pod_uid: str) -> str:
        """Return the sandbox that is served, else the running one; empty if there is none."""
        served = self.served.record_of(pod_uid)
        return served.sandbox if served is not None else self._bundles.sandbox_id(pod_uid) or ""

    def clear(self, pod_uid: str) -> None:
        """Remove the pod's state of an earlier sandbox."""
        detach_mounts_below(str(self.logs_folder(pod_uid)))
        shutil.rmtree(self.folder(pod_uid), ignore_errors=True)
        with contextlib.suppress(RestoreError):  # its volume is not mounted: nothing is left there
            RestoreContainerMessages(pod_uid, self._paths).remove_run_files()

    async def assign_incarnation(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the pod's incarnation to this Restore, once it has begun. State of an earlier Restore is removed.

        Raises:
            IncarnationEndedError: this Restore has served an incarnation that has ended.
        """
        is_mine = await asyncio.to_thread(self.is_for_restore, restore_uid, pod_uid)
        if is_mine and await asyncio.to_thread(self._is_decided, pod_uid):
            return
        container = RestoreContainerMessages(pod_uid, self._paths)
        incarnation = await container.wait_for_run(partial(self._bundles.incarnation_of_pod, pod_uid))
        if not is_mine:
            await asyncio.to_thread(self.clear, pod_uid)
        await asyncio.to_thread(self.served.record_assignment, restore_uid, pod_uid, incarnation)

    def is_for_restore(self, restore_uid: str, pod_uid: str) -> bool:
        """Return whether what is decided for the pod, if anything, was decided for this Restore.

        Raises:
            IncarnationEndedError: it was, for a sandbox that is gone.
        """
        served = self.served.record_of(pod_uid)
        if served is None:  # or decided by an agent that did not record it
            return True
        if served.restore != restore_uid:
            return False
        if self._bundles.sandbox_id(pod_uid) != served.sandbox:
            raise IncarnationEndedError("the pod's sandbox, for which this was ordered, is gone")
        return True

    def _is_decided(self, pod_uid: str) -> bool:
        return self.served.record_of(pod_uid) is not None or self.current_plan_of(pod_uid) is not None

    def assign_next(self, restore_uid: str, pod_uid: str) -> None:
        """Assign the running restore container to this Restore, if it is a new one in the same sandbox.

        Raises:
            IncarnationEndedError: it is in another sandbox.
        """
        if (incarnation := self._bundles.incarnation_of_pod(pod_uid)) is not None:
            self.served.record_assignment(restore_uid, pod_uid, incarnation)

    def forget_all_but(self, pod_uids: Collection[str]) -> None:
        """Remove the state of pods that no longer exist, except the logs of failures."""
        for folder in (self._state / "pods").glob("*"):
            if folder.name not in pod_uids:
                self._remove_state_folder(folder)
        self.served.forget_all_but(pod_uids)

    def _remove_state_folder(self, folder: Path) -> None:
        plan = plans.read_plan(str(folder))
        results = results_of(str(folder), plan).values() if plan else ()
        if all(result is not None and result.restored for result in results):
            detach_mounts_below(str(self._logs / folder.name))
            shutil.rmtree(self._logs / folder.name, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
