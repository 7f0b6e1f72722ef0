"""Pods of queues that protect all of theirs: before the pod webhook sees them they get the id of their job.

An admin names the queues; who submits jobs to them writes nothing. A job that takes a preempted one's place brings its
id with it, so the id is a name for all that follow, and no derived one.
"""

from __future__ import annotations

from typing import Final

from cedana_sched.kube.client import Object
from cedana_sched.model.objects import names
from cedana_sched.model.served import Served
from cedana_sched_armada.marks import JOB_LABEL, QUEUE_LABEL
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.identity import is_unnamed
from cedana_sched_webhooks.json_patch import difference

NOT_OURS: Final = Answer("not-ours")


class QueueOptIn:
    """Answers for pods at CREATE.

    Args:
        queues: those that protect their pods.
        served: whose pods are answered for.
    """

    def __init__(self, queues: frozenset[str], served: Served) -> None:
        self._queues = queues
        self._served = served

    async def answer(self, request: Request) -> Answer:
        """What to write on the pod."""
        pod = request.object
        if pod is None or not self._served.includes(request.namespace) or not (given := self.given(pod)):
            return NOT_OURS
        metadata = {**pod["metadata"], "annotations": {**_texts(pod, "annotations"), **given}}
        return Answer("protected", patch=tuple(difference(pod, {**pod, "metadata": metadata})))

    def given(self, pod: Object) -> dict[str, str]:
        """The annotations that its queue gives a pod; empty where it gives none."""
        labels = _texts(pod, "labels")
        job = labels.get(JOB_LABEL)
        if not job or labels.get(QUEUE_LABEL) not in self._queues or not is_unnamed(pod):
            return {}
        return {names.ID: job}


def _texts(pod: Object, kind: str) -> dict[str, str]:
    return pod["metadata"].get(kind) or {}
