"""The hold of evictions that no scheduler requests: calls of `pods/eviction`, and the taint controller's.

The API server calls the webhook before it looks at PodDisruptionBudgets. So the webhook looks at them first: an
eviction that a budget does not allow is left to the API server, which refuses it, and nothing is frozen for it.

client-go repeats the taint controller's write after `retryAfterSeconds`, ten times each for five attempts; after that
the write is not repeated. The release performs the eviction in either case. A later attempt may meet the successor of
the pod, which has the same name in a StatefulSet, on another node: the controller reads the pod by its name
(pkg/controller/tainteviction). That attempt is refused for good.

`kubectl drain` retries by the pod's name, too. If the coordinator has evicted the pod meanwhile, a retry would evict
its successor, and so on without end. So it is answered with 404, by which the client sees that its pod is gone; unless
the successor's node is drained as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, TypedDict, cast

import msgspec
import structlog

from cedana_sched.eviction_holds.decision import NOT_HELD, UNANNOUNCED_SECONDS, UNHELD, Decision
from cedana_sched.eviction_holds.pod_eviction_rule import KEPT, decide, eviction_request_tracker
from cedana_sched.kube.builtin_kinds import DISRUPTED, Metadata, Node
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ApiError, decoded
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.label_selector import selects
from cedana_sched.kube.namespace_turns import NamespaceTurns
from cedana_sched.kube.resources import NODES, PODS
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import read_index
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import read_mark
from cedana_sched_kubernetes.objects import (
    DISRUPTION_BUDGETS,
    EVICTION_API,
    TAINT,
    BudgetSelector,
    DisruptionBudget,
)
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.admission_types import StatusOfRunning, find_true_condition
from cedana_sched_webhooks.schedulers import ReplicaAccess

log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 5
"""For clients that retry: `kubectl drain` waits as long by itself, the taint controller retries for four minutes."""
RETRIES_LAST: Final = timedelta(seconds=60)
"""How long after a release a client may still retry the eviction of a pod that was evicted since."""
CALLS_AT_ONCE: Final = 4
"""Evictions for which the API server is read at a time: pods and budgets may be large, and their authors tenants."""
CALLS_OF_NAMESPACE: Final = 2
"""Likewise, of one namespace."""
READ_SECONDS: Final = 5.0
"""How long the API server is read for one of them; it waits no longer for its answer."""
LARGEST_BUDGET_BYTES: Final = 32 << 10
_NOT_OURS: Final = Answer("not-ours")
_EVICTED_BEFORE: Final = "cedana: the pod was saved and evicted; this one is its successor, on another node"
_SUCCESSOR: Final = "cedana: no taint of its node evicts this pod; its predecessor of the same name was evicted"


class _Metadata(TypedDict, total=False):
    name: str | None
    namespace: str
    uid: str
    resourceVersion: str | None
    deletionTimestamp: str | None
    labels: dict[str, str] | None
    annotations: dict[str, str] | None


class _Spec(TypedDict, total=False):
    nodeName: str | None


class _EvictedPod(TypedDict, total=False):
    """A pod, reduced to the fields read here: its author may make it large."""

    metadata: _Metadata
    spec: _Spec | None
    status: StatusOfRunning | None


class DisruptionHold:
    """Admission handlers for `pods/eviction` and for the taint controller's writes of `pods/status`.

    Args:
        replica: client, caches and settings of the replica.
        marker: records a refused eviction on its pod.
        clock: monotonic seconds.
    """

    def __init__(
        self, replica: ReplicaAccess, marker: EvictionMarker, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._replica = replica
        self._marker = marker
        self._requests = eviction_request_tracker(clock)
        self._turns = NamespaceTurns(CALLS_AT_ONCE, CALLS_OF_NAMESPACE)

    async def answer_eviction(self, request: Request) -> Answer:
        """Decide whether a pod may be evicted through `pods/eviction` now."""
        name = request.name or ((request.object or {}).get("metadata") or {}).get("name") or ""
        if not self._replica.served.includes(request.namespace):
            return _NOT_OURS
        async with self._turns.turn(request.namespace):
            return await self._answer_eviction_of(request, name)

    async def _answer_eviction_of(self, request: Request, name: str) -> Answer:
        try:
            async with asyncio.timeout(READ_SECONDS):
                read = await self._replica.api.find(PODS, name, request.namespace, into=_EvictedPod)
                pod = cast("Object | None", read)
                if pod is None or not _is_protected(pod) or not _is_named_by(request, pod):
                    return _NOT_OURS
                if await self._is_retry_for_predecessor(request, pod):
                    return Answer("successor", refusal=Refusal(404, "NotFound", _EVICTED_BEFORE))
                if not _is_running(pod):
                    return _NOT_OURS
                budgets = await self._budgets_counting(pod)
        except (ApiError, TimeoutError) as error:  # without us it would be evicted now; its preStop hook still waits
            why = str(error) or "its budgets are not read in time"
            log.warning("eviction not held", namespace=request.namespace, pod=name, error=why)
            return Answer("unknown")
        if len(budgets) > 1 or any(not one.allows(is_ready=_is_ready(pod)) for one in budgets):
            return Answer("budget")  # the API server refuses it
        return self._answer(request, pod, EVICTION_API, budgets[0].metadata.name if budgets else "")

    async def answer_status(self, request: Request) -> Answer:
        """Decide whether the taint controller may write `DisruptionTarget` now."""
        before, now = request.old_object, request.object
        is_eviction = before is not None and now is not None and not _is_disrupted(before) and _is_disrupted(now)
        if before is None or not is_eviction or not self._replica.served.includes(request.namespace):
            return _NOT_OURS
        if not _is_protected(before) or not _is_running(before):
            return _NOT_OURS
        node = await self._find_node_of(before)
        if node is not None and not node.evicts:
            return Answer("successor", refusal=Refusal(403, "Forbidden", _SUCCESSOR))
        if node is not None and node.is_out_of_service:
            return Answer("out-of-service")
        return self._answer(request, before, TAINT, "")

    def _succeeds_evicted_pod(self, pod: Object) -> bool:
        """Return whether a pod of the same identity was evicted on request a moment ago."""
        metadata, now = pod["metadata"], self._replica.now()
        annotations = metadata.get("annotations") or {}
        if (identifier := annotations.get(names.ID)) is None:
            return False
        try:
            index = read_index(f"metadata.annotations[{names.INDEX}]", annotations.get(names.INDEX, "0"))
        except UsageError:  # its author wrote it while no webhook answered
            return False
        preemptions, namespace = self._replica.preemptions, metadata["namespace"]
        predecessors = {one.spec.pod_ref.uid for one in preemptions.checkpoints_of(namespace, identifier, index)} - {
            metadata["uid"]
        }
        return any(
            hold.spec.reason == EVICTION_API
            and (released := hold.status.release_time) is not None
            and now - datetime.fromisoformat(released) < RETRIES_LAST
            for uid in predecessors
            for hold in preemptions.holds_of_pod(namespace, uid)
        )

    async def _is_retry_for_predecessor(self, request: Request, pod: Object) -> bool:
        """Return whether the call is by name, for a pod evicted a moment ago; not if this pod's node is cordoned, too.

        A pod that is not scheduled yet has no node.
        """
        if _preconditions_of(request).get("uid") or not self._succeeds_evicted_pod(pod):
            return False
        if not (pod.get("spec") or {}).get("nodeName"):
            return True
        node = await self._find_node_of(pod)
        return node is not None and not node.spec.unschedulable

    async def _find_node_of(self, pod: Object) -> Node | None:
        """Return the pod's node; None if it is gone, or cannot be read."""
        name = (pod.get("spec") or {}).get("nodeName") or ""
        try:
            return await self._replica.api.find(NODES, name, into=Node)
        except ApiError as error:
            log.warning("node not read", node=name, error=error.message)
            return None

    async def _budgets_counting(self, pod: Object) -> list[DisruptionBudget]:
        """Return the budgets of the pod, as `pods/eviction` finds them; without those too large to be read.

        The API server evaluates all of them when the coordinator evicts the saved pod.

        Raises:
            ApiError: they cannot be read.
        """
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
        found: list[DisruptionBudget] = []

        def see(body: msgspec.Raw) -> None:
            if memoryview(body).nbytes > LARGEST_BUDGET_BYTES:
                log.warning("disruption budget passed over: it is too large", namespace=namespace)
            elif selects(decoded("GET budgets", bytes(body), BudgetSelector).spec.selector, labels):
                found.append(decoded("GET budgets", bytes(body), DisruptionBudget))

        await self._replica.api.list_each(DISRUPTION_BUDGETS, namespace, None, see)
        return found

    def _answer(self, request: Request, pod: Object, cause: str, budget: str) -> Answer:
        metadata, is_dry = msgspec.convert(pod["metadata"], Metadata), _is_dry_run(request)
        mark, now = read_mark(metadata.annotations, names.DISRUPTION_REQUESTED), self._replica.now()
        requested_seconds = self._requests.seconds_since_first(metadata.uid, remember=False)
        holds = self._replica.preemptions.holds_of_pod(metadata.namespace, metadata.uid)
        decision = decide(metadata.uid, mark, holds, now, requested_seconds=requested_seconds)
        waited = max(requested_seconds, mark.seconds_requested(now) if mark is not None else 0.0)
        if decision.word == UNHELD and budget and self._waits_for_others(metadata.namespace, waited, now):
            decision = Decision(
                NOT_HELD, f"Waits: of the pods of PodDisruptionBudget {budget}, cedana saves others first"
            )
        if decision.refused is None:
            return Answer(decision.word)
        if not is_dry and decision.word != KEPT:
            self._requests.seconds_since_first(metadata.uid)
            self._marker.enqueue_mark(metadata, request.user_info.username, cause=cause, budget=budget)
        return Answer(decision.word, refusal=Refusal(429, "TooManyRequests", decision.refused, RETRY_SECONDS))

    def _waits_for_others(self, namespace: str, waited_seconds: float, now: datetime) -> bool:
        """Return whether the coordinator may have left the budget to other pods; never for longer than a hold lasts.

        All pods that a budget counts are of its namespace. Once they are saved, the coordinator has as long to take
        this pod up as if it were the first.
        """
        preemptions = self._replica.preemptions
        if waited_seconds >= preemptions.longest_seconds:
            return False
        return preemptions.was_saving_pods(namespace, now, timedelta(seconds=UNANNOUNCED_SECONDS))


def _is_dry_run(request: Request) -> bool:
    options = (request.object or {}).get("deleteOptions") or {}
    return bool(request.dry_run or options.get("dryRun"))


def _is_named_by(request: Request, pod: Object) -> bool:
    """Return whether the call is for this pod: one with the uid of another is the API server's to refuse."""
    wanted = _preconditions_of(request)
    names_it = wanted.get("uid") in {None, "", pod["metadata"].get("uid")}
    return names_it and wanted.get("resourceVersion") in {None, "", pod["metadata"].get("resourceVersion")}


def _preconditions_of(request: Request) -> dict[str, str | None]:
    options = (request.object or {}).get("deleteOptions") or {}
    return cast("dict[str, str | None]", options.get("preconditions") or {})


def _is_protected(pod: Object) -> bool:
    """Return whether the pod is protected, and not being deleted."""
    metadata = pod["metadata"]
    return (metadata.get("labels") or {}).get(names.PROTECTED) == "true" and not metadata.get("deletionTimestamp")


def _is_running(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def _is_ready(pod: Object) -> bool:
    return find_true_condition(pod, "Ready") is not None


def _is_disrupted(pod: Object) -> bool:
    return find_true_condition(pod, DISRUPTED) is not None
