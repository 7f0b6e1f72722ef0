"""Pods of queues that protect all of theirs: before the pod webhook sees them they get the id of who controls them.

An admin annotates a Queue with `names.PROTECT`; who writes pods into it writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import PartialObject
from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from cedana_sched.model.objects import names
from cedana_sched.model.objects.naming import derived_id
from cedana_sched_volcano.objects import DEFAULT_QUEUE, QUEUE_NAME, QUEUE_OF_JOB, SCHEDULER_NAME
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.json_patch import difference

NOT_OURS: Final = Answer("not-ours")


class QueueOptIn:
    """Answers for pods at CREATE.

    Args:
        queue: a Queue by its name; None where there is none, or none is known yet.
        excluded: namespaces whose pods are left alone.
    """

    def __init__(self, queue: Callable[[str], PartialObject | None], excluded: frozenset[str]) -> None:
        self._queue = queue
        self._excluded = excluded

    async def answer(self, request: Request) -> Answer:
        """What to write on the pod."""
        pod = request.object
        if pod is None or request.namespace in self._excluded or not _is_unnamed(pod):
            return NOT_OURS
        queue = self._queue(_queue_of(pod))
        if queue is None or queue.metadata.annotations.get(names.PROTECT) != "true":
            return NOT_OURS
        if (owner := _controller(pod)) is None:  # nothing can ever continue in its place
            return Answer("alone")
        annotations = {names.ID: derived_id(owner["name"], owner["uid"]), names.DERIVED: "true"}
        if policy := queue.metadata.annotations.get(names.POLICY):
            annotations[names.POLICY] = policy
        metadata = {**pod["metadata"], "annotations": {**annotations, **_texts(pod, "annotations")}}
        return Answer("protected", patch=tuple(difference(pod, {**pod, "metadata": metadata})))


def _is_unnamed(pod: Object) -> bool:
    """Whether it is Volcano's, and nobody has said who it is: an empty variable says that it is not to be protected."""
    if pod["spec"].get("schedulerName") != SCHEDULER_NAME or names.ID in _texts(pod, "annotations"):
        return False
    variables = (one for container in pod["spec"].get("containers") or () for one in container.get("env") or ())
    return all(one.get("name") != CHECKPOINT_VARIABLE for one in variables)


def _queue_of(pod: Object) -> str:
    annotations = _texts(pod, "annotations")
    return annotations.get(QUEUE_OF_JOB) or annotations.get(QUEUE_NAME) or DEFAULT_QUEUE


def _controller(pod: Object) -> dict[str, Any] | None:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _texts(pod: Object, kind: str) -> dict[str, str]:
    return pod["metadata"].get(kind) or {}
