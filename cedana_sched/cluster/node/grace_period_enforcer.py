"""Enforces the termination grace period that a pod's owner has set.

The pod webhook raises a pod's termination grace period, so that the kubelet waits for a snapshot in flight. A program
that ignores SIGTERM would get all of that time, even while the pod is not held: so the agent ends the pod after its
original grace. The grace counts from the moment at which the pod is no longer held; SIGTERM comes no earlier than that.

The kubelet ends a pod in two cases: when the pod is deleted and, with the same grace, when its containers have
completed and only sidecars remain. In a pod that keeps running, the kubelet ends single containers when a probe fails,
when the sandbox has died or after a reboot of the node: it makes the preStop call of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.objects import names

log = structlog.get_logger(__name__)


def own_grace_seconds(pod: Pod) -> float | None:
    """Return seconds from SIGTERM to SIGKILL as the owner wants them; None if the kubelet counts the right ones.

    An explicit grace of the deletion (`kubectl delete --grace-period`) takes precedence; with a grace of 0 the kubelet
    has ended the pod already.
    """
    written = pod.metadata.annotations.get(names.ORIGINAL_GRACE_PERIOD, "")
    requested, raised = pod.metadata.deletion_grace_period_seconds, pod.spec.termination_grace_period_seconds
    if requested == 0 or not (written.isascii() and written.isdecimal()):
        return None
    if requested is None or requested == raised:
        return float(written) if raised is None else min(float(written), float(raised))  # never lowered
    return float(requested)


def longest_grace_seconds(pod: Pod, container: str) -> float | None:
    """Return the same for one container of a running pod: the probe that ends it may have a grace of its own."""
    own = own_grace_seconds(pod)
    if own is None:
        return None
    probes = (
        probe.termination_grace_period_seconds or 0
        for one in pod.spec.containers
        if one.name == container
        for probe in (one.liveness_probe, one.startup_probe)
        if probe is not None
    )
    return max(own, *probes, 0.0)


def only_sidecars_are_left(pod: Pod) -> bool:
    """Return whether the containers have terminated for good, so that the kubelet is ending the sidecars."""
    never, rarely = (pod.spec.restart_policy == policy for policy in ("Never", "OnFailure"))
    ends = [status.state.get("terminated") for status in pod.status.container_statuses]
    if pod.finished or len(ends) < max(1, len(pod.spec.containers)):
        return False
    return all(end is not None and (never or (rarely and end.get("exitCode") == 0)) for end in ends)


class Containers(Protocol):
    """The running containers of a pod; see `PodContainers`."""

    async def kill(self, pod_uid: str) -> None: ...
    async def find_container_id(self, pod_uid: str, name: str) -> str | None: ...
    async def kill_container(self, pod_uid: str, identifier: str) -> None: ...


class OriginalGraceEnforcer:
    """Ends the pods of one node, and their containers, after their original grace.

    Args:
        wait_released: returns when the pod with this uid is no longer held.
        is_deleted: whether a pod is being deleted; True also if that cannot be determined.
        containers: the running containers of a pod.
        is_served: whether the pod's namespace is served; in others the kubelet alone ends a pod.
    """

    def __init__(
        self,
        wait_released: Callable[[str], Awaitable[None]],
        is_deleted: Callable[[Pod], Awaitable[bool]],
        containers: Containers,
        is_served: Callable[[Pod], bool] = lambda pod: True,  # noqa: ARG005
    ) -> None:
        self._is_served = is_served
        self._wait_released = wait_released
        self._is_deleted = is_deleted
        self._containers = containers
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._container_ends: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By uid of the pod and name of the container: one at a time, since a pod's own probes can call as well."""
        self._called_again: set[tuple[str, str]] = set()

    def on_pod_ending(self, pod: Pod, group: asyncio.TaskGroup) -> None:
        """Start the grace of a pod that the kubelet is ending; a repeated call (the grace has changed) restarts it."""
        self.on_pod_gone(pod.metadata.uid)
        seconds = own_grace_seconds(pod)
        if seconds is not None and self._is_served(pod):
            self._ends[pod.metadata.uid] = group.create_task(
                self._kill_pod_after_grace(pod, seconds), name=f"end of {pod.metadata.name}"
            )

    def on_container_ending(self, pod: Pod, name: str, group: asyncio.TaskGroup) -> None:
        """Start the grace of one container that the kubelet is ending; `on_pod_ending` covers deleted pods."""
        seconds = longest_grace_seconds(pod, name)
        is_its_own = any(one.name == name for one in (*pod.spec.containers, *pod.spec.init_containers))
        is_ending = pod.metadata.deletion_timestamp is not None
        if seconds is None or is_ending or not is_its_own or not self._is_served(pod):
            return
        key = (pod.metadata.uid, name)
        if key in self._container_ends:
            self._called_again.add(key)
        else:
            work = self._end_container(pod, name, seconds)
            self._container_ends[key] = group.create_task(work, name=f"end of {pod.metadata.name}/{name}")

    async def _end_container(self, pod: Pod, container: str, seconds: float) -> None:
        key = (pod.metadata.uid, container)
        try:
            while True:
                self._called_again.discard(key)
                await self._kill_container_after_grace(pod, container, seconds)
                if key not in self._called_again:  # the container may have been restarted meanwhile
                    return
        finally:
            if self._container_ends.get(key) is asyncio.current_task():
                del self._container_ends[key]
                self._called_again.discard(key)

    async def _kill_container_after_grace(self, pod: Pod, container: str, seconds: float) -> None:
        uid, name = pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}"
        identifier = await self._containers.find_container_id(
            uid, container
        )  # a later container may have the same name
        if identifier is None:
            return
        await asyncio.sleep(seconds)
        await self._wait_released(uid)
        if await self._is_deleted(pod):
            return
        try:
            if await self._containers.find_container_id(uid, container) == identifier:
                log.info("container has had its own grace: killed", pod=name, container=container, seconds=seconds)
                await self._containers.kill_container(uid, identifier)
        except CedanaSchedError as error:  # the kubelet kills it when the raised grace expires
            log.warning("container does not end", pod=name, container=container, error=str(error))

    def on_pod_gone(self, uid: str) -> None:
        """Drop the state of a pod that no longer exists."""
        if ending := self._ends.pop(uid, None):
            ending.cancel()
        for key in [key for key in self._container_ends if key[0] == uid]:
            self._called_again.discard(key)
            self._container_ends.pop(key).cancel()

    async def _kill_pod_after_grace(self, pod: Pod, seconds: float) -> None:
        uid, name = pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}"
        await self._wait_released(uid)
        await asyncio.sleep(seconds)
        await self._wait_released(uid)  # a checkpoint may have begun meanwhile
        log.info("pod has had its own grace: killed", pod=name, seconds=seconds)
        try:
            await self._containers.kill(uid)
        except CedanaSchedError as error:  # the kubelet kills it when the raised grace expires
            log.warning("pod does not end", pod=name, error=str(error))
