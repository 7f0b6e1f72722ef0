"""The grace that a pod's owner gave it, kept for him.

The pod webhook raises a pod's termination grace period, so that the kubelet waits for a snapshot that is under way. A
program that ignores SIGTERM would have all of that time, also when nothing is held: so the agent ends it after its
own. It counts from the moment at which nothing is held any more; SIGTERM comes no earlier than that.

The kubelet ends a pod in two cases: when it is deleted, and, with the same patience, when its containers have done
their work and only sidecars are left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from cedana_sched.kube.objects import Pod
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.objects import names

log = structlog.get_logger(__name__)


def own_grace_seconds(pod: Pod) -> float | None:
    """Seconds from SIGTERM to SIGKILL as its owner wants them; None when the kubelet counts them rightly.

    Who deletes it with a grace of his own (`kubectl delete --grace-period`) has the last word; with none left, the
    kubelet has ended it already.
    """
    written = pod.metadata.annotations.get(names.GRACE, "")
    asked, raised = pod.metadata.deletion_grace_period_seconds, pod.spec.termination_grace_period_seconds
    if asked == 0 or not (written.isascii() and written.isdecimal()):
        return None
    if asked is None or asked == raised:
        return float(written)
    return float(asked)


def only_sidecars_are_left(pod: Pod) -> bool:
    """Whether its containers have ended for good, so that the kubelet is ending what else there is."""
    never, rarely = (pod.spec.restart_policy == policy for policy in ("Never", "OnFailure"))
    ends = [status.state.get("terminated") for status in pod.status.container_statuses]
    if pod.finished or len(ends) < max(1, len(pod.spec.containers)):
        return False
    return all(end is not None and (never or (rarely and end.get("exitCode") == 0)) for end in ends)


class OwnGrace:
    """Ends the pods of one node in time.

    Args:
        released: returns when nothing is held for a pod of this uid.
        kill: ends every process of a pod; returns when they have gone.
    """

    def __init__(self, released: Callable[[str], Awaitable[None]], kill: Callable[[str], Awaitable[None]]) -> None:
        self._released = released
        self._kill = kill
        self._ends: dict[str, asyncio.Task[None]] = {}

    def begins(self, pod: Pod, group: asyncio.TaskGroup) -> None:
        """The kubelet is ending the pod, or its grace has changed since: this call counts from now."""
        self.gone(pod.metadata.uid)
        seconds = own_grace_seconds(pod)
        if seconds is not None:
            self._ends[pod.metadata.uid] = group.create_task(
                self._end(pod, seconds), name=f"end of {pod.metadata.name}"
            )

    def gone(self, uid: str) -> None:
        """The pod is no more."""
        if ending := self._ends.pop(uid, None):
            ending.cancel()

    async def _end(self, pod: Pod, seconds: float) -> None:
        uid, name = pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}"
        await self._released(uid)
        await asyncio.sleep(seconds)
        await self._released(uid)  # a checkpoint may have begun meanwhile
        log.info("pod has had its own grace: killed", pod=name, seconds=seconds)
        try:
            await self._kill(uid)
        except CedanaSchedError as error:  # the kubelet insists when its longer patience ends
            log.warning("pod does not end", pod=name, why=str(error))
