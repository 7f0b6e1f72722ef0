"""Reports new incarnations of pods to the coordinator: their restore containers wait, and no Restore is for them.

A kubelet does not publish a new incarnation of a Job's pod (`checkContainerStateTransition` of its status manager
refuses the whole status while an init container runs that had succeeded), so the agent detects it on the node. The
report is a field in the status of the pod's latest Restore, and stays true: that Restore's incarnation has ended. The
coordinator creates the next Restore whenever it reads the field.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog
from asyncinotify import Mask

from cedana_sched.cluster.node.containers.bundles import Bundles, Incarnation
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.file_waits import wait_for_path
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.cluster.node.restoring.restore_states import IncarnationRecord, IncarnationRecords
from cedana_sched.component.folder_watches import shared_folder_watches
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import RESTORES
from cedana_sched.kube.watching import Informer
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.restore import RestoreStatus
from cedana_sched.model.records import RestoreStep
from cedana_sched.retrying import API_CALLS, Backoff

log = structlog.get_logger(__name__)

LATER_SECONDS = 5.0
_MADE = Mask.CREATE | Mask.MOVED_TO
_STATE = "state.json"
_DECIDED = {str(RestoreStep.RUNNING), str(RestoreStep.FAILED)}


class IncarnationReports:
    """Detects and reports new incarnations of a node's pods. Run `run` as a task.

    Args:
        api: may patch the status of Restores.
        restores: those of this node.
        pod: returns a pod of this node by its uid; None if it is not cached.
        paths: of the host.
        served: the incarnations for which Restores were decided.
    """

    def __init__(
        self,
        api: Api,
        restores: Informer[OrderedObject],
        pod: Callable[[str], Pod | None],
        paths: HostPaths,
        served: IncarnationRecords,
    ) -> None:
        self._api = api
        self._pod = pod
        self._paths = paths
        self._served = served
        self._bundles = Bundles(paths)
        self._restores = restores
        self._of_pod = Index(lambda one: one.spec.pod_ref.uid, restores)
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Report all present incarnations, and each new one, until cancelled."""
        self._restores.subscribe(lambda before, now: self._changed.set())  # noqa: ARG005
        await self._restores.synced.wait()
        loop, backoff = asyncio.get_running_loop(), Backoff(API_CALLS)
        again: asyncio.Handle = loop.call_soon(lambda: None)
        async with asyncio.TaskGroup() as group:
            made = watch_created_containers(self._paths.agent_path(self._paths.states), self._changed.set)
            group.create_task(made, name="containers of this node")
            while True:
                await self._changed.wait()
                self._changed.clear()
                again.cancel()  # at most one timer, however often something changes meanwhile
                if await self._report_safely():
                    backoff.reset()
                else:
                    again = loop.call_later(backoff.next_pause(), self._changed.set)

    async def _report_safely(self) -> bool:
        try:
            return await self.report()
        except Exception:  # a defect in one pod must not end the agent
            log.exception("new incarnations not reported")
            return False

    async def report(self) -> bool:
        """Report the present incarnations; False: some need another call."""
        done = True
        for pod_uid, incarnation in (await asyncio.to_thread(self._bundles.running_incarnations)).items():
            restore = await asyncio.to_thread(self._latest_ended_restore, pod_uid, incarnation)
            if restore is None or restore.status.replaced_by is not None:
                continue
            is_clear = not await asyncio.to_thread(self._is_still_ending, pod_uid, incarnation, restore.spec.uid)
            done &= is_clear and await self._write_replaced_by(restore, incarnation)
        return done

    def _latest_ended_restore(self, pod_uid: str, incarnation: Incarnation) -> OrderedObject | None:
        """Return the latest Restore of a pod, if none of its Restores is for this incarnation."""
        pod = self._pod(pod_uid)
        namespace = pod.metadata.namespace if pod is not None else None
        restores = [one for one in self._of_pod.objects_of(pod_uid) if namespace in (None, one.metadata.namespace)]
        served = self._served.record_of(pod_uid)
        if not restores or not all(_is_restore_over(restore, incarnation, served) for restore in restores):
            return None
        return max(restores, key=lambda restore: restore.status.incarnation)

    def _is_still_ending(self, pod_uid: str, incarnation: Incarnation, restore_uid: str) -> bool:
        """Return whether a container of the pod still runs, or the restore container is just exiting with its decision.

        A container that runs beside the restore container, in its own sandbox, is no remnant of an earlier incarnation:
        a kubelet whose node rebooted while it created a container takes the pod for initialized, and starts all
        containers at once (`computePodActions`, in its kuberuntime_manager.go).
        """
        if (pod := self._pod(pod_uid)) is None:
            return True
        own = {one.name for one in (*pod.spec.containers, *pod.spec.init_containers)}
        rest = (one for one in self._bundles.workload_containers(pod_uid) if one.sandbox != incarnation.sandbox)
        if any(container.name in own for container in rest):
            return True
        if (served := self._served.record_of(pod_uid)) is not None and served.restore == restore_uid:
            return False  # the restore container of that Restore is recorded
        try:
            return RestoreContainerMessages(pod_uid, self._paths).has_taken_decision()
        except RestoreError:  # its volume is not mounted yet
            return False

    async def _write_replaced_by(self, restore: OrderedObject, incarnation: Incarnation) -> bool:
        patch: Object = {"status": {RestoreStatus.wire_name("replaced_by"): incarnation.container}}
        metadata = restore.metadata
        try:
            await self._api.patch(RESTORES, metadata.name, metadata.namespace, patch, subresource="status")
        except ApiError as error:
            log.warning("new incarnation not reported, trying again", object=metadata.name, error=error.message)
            return False
        log.info(
            "pod has a new incarnation",
            pod=restore.spec.pod_ref.uid,
            after=restore.spec.uid,
            sandbox=incarnation.sandbox,
        )
        return True


def _is_restore_over(restore: OrderedObject, incarnation: Incarnation, served: IncarnationRecord | None) -> bool:
    """Return whether a Restore does not concern this incarnation any more."""
    status = restore.status
    if status.step == RestoreStep.ENDED:
        return True
    given, answered = restore.order, status.answer
    is_answered = given is None or (answered is not None and answered.number >= given.number)
    if served is not None and served.restore == restore.spec.uid:
        if served.sandbox != incarnation.sandbox:
            return True  # its work, done or pending, ended with that sandbox
        return is_answered and status.step in _DECIDED and served.container != incarnation.container
    return is_answered and status.step in _DECIDED  # an earlier incarnation than the served one, or unrecorded


async def watch_created_containers(states: Path, made: Callable[[], None]) -> None:
    """Call `made` once at first, and when runc has created containers, until cancelled; `states` is runc's folder."""
    await wait_for_path(states)
    while True:
        try:
            await _watch_containers(states, made)
        except OSError as error:  # the node lacks a resource, perhaps temporarily
            log.warning("containers are looked for later", error=str(error), seconds=LATER_SECONDS)
            await asyncio.sleep(LATER_SECONDS)


async def _watch_containers(states: Path, made: Callable[[], None]) -> None:
    with shared_folder_watches().open_waiter() as changes:
        changes.add(states, _MADE)
        made()
        known: dict[str, int] = {}
        unfinished: set[str] = set()
        while True:
            complete, begun = await asyncio.to_thread(_created_containers, states)
            for name in unfinished - begun:
                changes.remove(states / name)
            more, unfinished = begun - unfinished, begun
            for name in more:
                with contextlib.suppress(OSError):  # it was removed again
                    changes.add(states / name, _MADE)
            if more:
                continue  # its content may be older than the watch
            if complete.items() - known.items():
                made()
            known = complete
            await changes.wait()


def _created_containers(states: Path) -> tuple[dict[str, int], set[str]]:
    """Return the containers that runc has created, with their folders' inodes, and the names of unfinished ones."""
    try:
        with os.scandir(states) as entries:
            folders = {entry.name: entry.inode() for entry in entries if entry.is_dir(follow_symlinks=False)}
    except FileNotFoundError:
        return {}, set()
    complete = {name: inode for name, inode in folders.items() if (states / name / _STATE).exists()}
    return complete, folders.keys() - complete.keys()
