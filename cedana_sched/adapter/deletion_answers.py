"""Answers to pods whose preStop hooks wait for the adapter of their scheduler to say what their deletion is.

A deletion that the scheduler decides is reported as its preemption, and needs no answer. Any other is handed over to
the adapter that saves pods from such deletions, if there is one; else the pod ends at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.protected_pods import hand_over_deletion, mark_not_preempted
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import UserWritten

_Key = tuple[str, str]
"""Namespace and name of a pod."""


class DeletionSettings(UserWritten):
    """Part of the section of an adapter that answers deletions."""

    hands_over_deletions: bool = False
    """Whether another adapter saves pods from deletions that their scheduler has not decided."""


class DeletionCause(Enum):
    """What has deleted a pod."""

    SCHEDULER = auto()
    """Its scheduler, whose preemption is reported; or it is another adapter's to say. Nothing is answered."""
    CONTROLLER = auto()
    """Its controller, which ends the pod's work or begins it anew, so that nothing of it may continue."""
    OTHER = auto()
    """A person or a program."""


class DeletionAnswers:
    """Answers one pod after the other, in turn by namespace. Run `run` as a task.

    Args:
        cluster: the coordinator's shared clients and caches.
        cause_of: returns the cause by current objects, because caches may be stale; raises ApiError to be called again.
        is_handing_over: `DeletionSettings.hands_over_deletions`.
    """

    def __init__(
        self, cluster: ClusterAccess, cause_of: Callable[[Pod], Awaitable[DeletionCause]], *, is_handing_over: bool
    ) -> None:
        self._cluster = cluster
        self._cause_of = cause_of
        self._answer_other = hand_over_deletion if is_handing_over else mark_not_preempted
        self._queue: WorkQueue[_Key] = WorkQueue(
            "answer to a pod that is being deleted", self._answer, group_of=lambda key: key[0]
        )

    async def run(self) -> None:
        """Answer, forever."""
        await self._queue.run()

    def add(self, pod: Pod) -> None:
        """Answer this pod soon; returns at once."""
        self._queue.add((pod.metadata.namespace, pod.metadata.name))

    async def _answer(self, key: _Key) -> None:
        namespace, name = key
        pod = self._cluster.pods.get(name, namespace)
        if pod is None or not is_answer_awaited(pod):
            return
        match await self._cause_of(pod):
            case DeletionCause.CONTROLLER:
                await mark_not_preempted(self._cluster.api, pod)
            case DeletionCause.OTHER:
                await self._answer_other(self._cluster.api, pod)
            case DeletionCause.SCHEDULER:
                return


def is_answer_awaited(pod: Pod) -> bool:
    """Return whether the pod is terminating, and its preStop hook waits for an answer whatever the pod's conditions."""
    metadata = pod.metadata
    is_requested = metadata.annotations.get(names.CONFIRM_DELETION) == names.CONFIRM_ALWAYS
    return is_requested and metadata.deletion_timestamp is not None and not pod.finished
