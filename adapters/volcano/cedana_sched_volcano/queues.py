"""Pods of queues that protect all of theirs: before the pod webhook sees them they get the id of who controls them.

An admin annotates a Queue with `names.PROTECT`; who writes pods into it writes nothing. The policy that he gives the
queue is said of all its pods that are protected, also of those that name an id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import PartialObject
from cedana_sched.model.numbering import TASK
from cedana_sched.model.objects import names
from cedana_sched.model.objects.naming import derived_id
from cedana_sched_volcano.objects import DEFAULT_QUEUE, QUEUE_NAME, QUEUE_OF_JOB, SCHEDULER_NAME
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import is_unnamed
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
        if pod is None or request.namespace in self._excluded:
            return NOT_OURS
        queue = self._queue(_queue_of(pod))
        if pod["spec"].get("schedulerName") != SCHEDULER_NAME or queue is None or not protects(queue):
            return NOT_OURS
        policy = queue.metadata.annotations.get(names.POLICY)
        chosen = {names.QUEUE_POLICY: policy} if policy else {}
        if not is_unnamed(pod):
            written = _written(pod, {**_texts(pod, "annotations"), **chosen})
            return Answer("named", patch=written) if chosen else NOT_OURS
        if (owner := _controller(pod)) is None:  # nothing can ever continue in its place
            return Answer("alone")
        task = _texts(pod, "labels").get(TASK, "")
        identifier = derived_id(owner["name"], owner["uid"], room=len(f"-{task}") if task else 0)
        annotations = {names.ID: identifier, names.DERIVED: "true"}
        if policy:
            annotations[names.POLICY] = policy
        return Answer("protected", patch=_written(pod, {**annotations, **_texts(pod, "annotations"), **chosen}))


def protects(queue: PartialObject) -> bool:
    """Whether it protects all of its pods."""
    return queue.metadata.annotations.get(names.PROTECT) == "true"


def _written(pod: Object, annotations: dict[str, str]) -> tuple[Object, ...]:
    """The patch by which the pod has these annotations."""
    return tuple(difference(pod, {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}))


def _queue_of(pod: Object) -> str:
    annotations = _texts(pod, "annotations")
    return annotations.get(QUEUE_OF_JOB) or annotations.get(QUEUE_NAME) or DEFAULT_QUEUE


def _controller(pod: Object) -> dict[str, Any] | None:
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), None)


def _texts(pod: Object, kind: str) -> dict[str, str]:
    return pod["metadata"].get(kind) or {}
