"""Pods whose protection was asked for, and that no webhook has prepared: said, and protected as far as they can be.

The API server creates pods without us while no webhook answers (`failurePolicy: Ignore`). That protection was asked for
shows on such a pod: its controller's template has the id. Pods of controllers that `numbering` has no label for are not
watched: a cluster may have any number of them.

The pod is given its identity here, and is then frozen and saved like any other one when it is preempted. What only a
webhook can give, because a pod's spec does not change any more: the preStop by which its end is waited for, the longer
grace period, the gate and the init container of a return. So it started cold.

It is not deleted to be created anew: a Job counts a deleted pod as a failure, also one that has never run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog

from cedana_sched.adapter.cluster import Snapshots
from cedana_sched.cluster.coordinator.owners import warn_not_protected
from cedana_sched.coordinator.core import Tell
from cedana_sched.coordinator.core.instructions import Severity
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.objects import PartialObject, Pod
from cedana_sched.kube.resources import PODS, UNFINISHED_PODS
from cedana_sched.kube.same_object import patch_same
from cedana_sched.kube.watching import Mirror, Watch
from cedana_sched.kube.work_queue import WorkQueue
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import CHECKPOINT_VARIABLE, Identity
from cedana_sched.model.numbering import SCHEMES
from cedana_sched.model.objects import names
from cedana_sched.model.preemption import HeldObject, WorkloadRef
from cedana_sched_webhooks.identity import Replica, replica_of
from cedana_sched_webhooks.siblings import Siblings

log = structlog.get_logger(__name__)


class Unprepared:
    """Run `run` as a task.

    Args:
        api: reads the pods and marks them.
        snapshots: what there is to continue from.
        events: publishes the pods that the webhooks have refused.
        tell: publishes the pods that no webhook has seen.
        excluded: namespaces whose pods are left alone.
        policy_of: the name of the policy that a pod with these annotations has; None: nobody names one.
    """

    def __init__(
        self,
        api: Api,
        snapshots: Snapshots,
        events: EventRecorder,
        tell: Callable[[Tell], None],
        excluded: frozenset[str],
        policy_of: Callable[[Mapping[str, str]], str | None],
    ) -> None:
        self._api = api
        self._snapshots = snapshots
        self._events = events
        self._tell = tell
        self._excluded = excluded
        self._policy_of = policy_of
        self._siblings = Siblings(api)
        self.unlabelled = {
            label: Mirror(Watch(api, PODS, Pod, labels=selector, fields=UNFINISHED_PODS), events.unreadable)
            for label, selector in _selectors().items()
        }
        """By the label that a controller's pods have."""
        refused = f"{names.PROTECTED}=false"
        watched = Watch(api, PODS, PartialObject, labels=refused, fields=UNFINISHED_PODS)
        self.refused = Mirror(watched, events.unreadable)
        self._preparing = WorkQueue("protection of a pod that no webhook has seen", self._prepare)
        for mirror in self.unlabelled.values():
            mirror.subscribe(self._heard)
        self.refused.subscribe(self._was_refused)

    async def run(self) -> None:
        """Look for them, for ever."""
        async with asyncio.TaskGroup() as group:
            for label, mirror in self.unlabelled.items():
                group.create_task(mirror.run(), name=f"pods with {label} that no webhook has seen")
            group.create_task(self.refused.run(), name="pods that are not protected")
            group.create_task(self._preparing.run(), name="pods that no webhook has seen")

    def _heard(self, before: Pod | None, now: Pod | None) -> None:
        if now is None or before is not None or now.metadata.namespace in self._excluded:
            return
        if now.metadata.deletion_timestamp is None and _asks_for_protection(now):
            self._preparing.add(f"{now.metadata.namespace}/{now.metadata.name}")

    def _was_refused(self, before: PartialObject | None, now: PartialObject | None) -> None:
        if now is not None and before is None and (why := now.metadata.annotations.get(names.REFUSED)) is not None:
            warn_not_protected(self._events, now.metadata, why)

    async def _prepare(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        seen = (mirror.get(name, namespace) for mirror in self.unlabelled.values())
        pod = next((one for one in seen if one is not None), None)
        if pod is None or pod.metadata.deletion_timestamp is not None:
            return
        try:
            now = await self._api.get(PODS, name, namespace, into=Pod)
            if now.metadata.uid != pod.metadata.uid or names.PROTECTED in now.metadata.labels:
                return
            replica, problem, among = await self._who(now, namespace)
            await self._write(pod, replica, problem, among=among)
        except AbsentError:
            return

    async def _who(self, pod: Pod, namespace: str) -> tuple[Replica | None, str, bool]:
        """Who it is, or why nobody; and whether it is one of several that nothing tells apart."""
        body: Object = msgspec.to_builtins(pod)
        try:
            apart = await self._siblings.told_apart(body, namespace)
            return replica_of(body, apart.by_chance, apart.job), "", apart.by_chance is not None
        except UsageError as error:
            return None, str(error), False

    async def _write(self, pod: Pod, replica: Replica | None, problem: str, *, among: bool) -> None:
        """`among`: it is one of several that nothing tells apart."""
        if replica is None and not problem:
            return
        metadata = pod.metadata
        annotations = {names.REFUSED: problem}
        if replica is not None:
            annotations = {names.ID: replica.id, names.INDEX: str(replica.index), names.PREPARED_LATE: "true"}
            if (policy := self._policy_of(metadata.annotations)) is not None:
                annotations[names.POLICY] = policy
        labels = {names.PROTECTED: "true" if replica else "false"}
        patch: Object = {"metadata": {"labels": labels, "annotations": annotations}}
        is_there = await patch_same(self._api, PODS, metadata, patch)
        if is_there and replica is not None:  # the other is published once its label shows
            self._say(pod, replica, is_one_of_several=among)

    def _say(self, pod: Pod, replica: Replica, *, is_one_of_several: bool) -> None:
        metadata = pod.metadata
        saved = self._snapshots.snapshots_of(metadata.namespace, replica.id)
        missed = [ref for ref in saved if is_one_of_several or ref.identity.index == replica.index]
        kind, start = "NotPrepared", f"{metadata.name} was created while no webhook answered"
        if missed:
            newest = max(missed, key=lambda ref: ref.generation)
            snapshot = f"{newest.identity.id}/{newest.identity.index}@{newest.generation}"
            kind, start = "ColdStart", f"Started {metadata.name} without checkpoint {snapshot}: no webhook answered"
        text = f"{start}; it is saved when it is preempted, but its deletion is not waited for"
        log.warning("pod was not prepared by a webhook", namespace=metadata.namespace, pod=metadata.name, kind=kind)
        workload = WorkloadRef(metadata.uid, metadata.namespace, metadata.name, pod.spec.node_name)
        identity = Identity(metadata.namespace, replica.id, replica.index)
        self._tell(Tell(kind, text, Severity.WARNING, identity, workload, held=_owner(pod)))


def _selectors() -> dict[str, str]:
    """By the label that a controller's pods have. A pod with the labels of several is kept in memory once."""
    labels = [scheme.pods for scheme in SCHEMES if scheme.pods]
    return {
        label: ",".join((label, *(f"!{other}" for other in (*labels[:place], names.PROTECTED))))
        for place, label in enumerate(labels)
    }


def _owner(pod: Pod) -> HeldObject | None:
    """The Job that its person looks at."""
    if (owner := pod.metadata.owner) is None:
        return None
    return HeldObject(owner.api_version, owner.kind, pod.metadata.namespace, owner.name, owner.uid)


def _asks_for_protection(pod: Pod) -> bool:
    """As the webhook's `matchConditions` say it; an empty variable declines it."""
    values = [
        one.value for container in pod.spec.containers for one in container.env if one.name == CHECKPOINT_VARIABLE
    ]
    return any(values) or (not values and names.ID in pod.metadata.annotations)
