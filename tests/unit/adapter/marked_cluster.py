"""Pods with marks in memory, and what `MarkedEvictions` reports of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.marked_evictions import NOT_WANTED, Family, MarkedEvictions, single_pod_family
from cedana_sched.kube.builtin_kinds import PREEMPTION, Condition, Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.errors import ApiError, ConflictError, RefusedByServerError
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark, serialized_mark
from cedana_sched.model.policy import CheckpointPolicy


def mark(*, since: float = 0.0, last: float = 0.0) -> str:
    """Times in seconds from now."""
    now = datetime.now(tz=UTC)
    times = ((now + timedelta(seconds=seconds)).isoformat(timespec="milliseconds") for seconds in (since, last))
    return serialized_mark(EvictionMark("volcano", *times))


def read_mark_of(text: str) -> EvictionMark:
    found = read_mark({names.EVICTION_REQUESTED: text})
    assert found is not None
    return found


def stale() -> str:
    return mark(since=-100, last=-100)


class Cluster:
    """Pods that a test changes, and what was patched.

    Args:
        now: the time of day.
    """

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(tz=UTC)) -> None:
        self.pods: Informer[Pod] = Informer(cast("Any", None))
        self.pods.synced.set()
        self.patched: list[tuple[str, Any]] = []
        self.refuses = 0
        self.refusal: ApiError = ConflictError("it has changed", remedy="look again")
        self.was_patched = asyncio.Event()
        self.at_patch: Callable[[], object] | None = None
        """Called once, while a mark is removed."""
        self.there: dict[str, Pod] = {}
        """By name: what the API server has, where the cache is behind."""
        self._version = 0
        access = ClusterAccess(
            cast("Any", self), cast("Any", None), self.pods, self, cast("Any", None), "-", cast("Any", None)
        )
        self.family: Callable[[Pod], Family] = single_pod_family
        self.evictions = MarkedEvictions("sched", access, concerns=_is_mine, family_of=self._family_of, now=now)

    def refuse(self) -> None:
        """From now on pods cannot be written: another webhook of theirs denies it, or is away."""
        self.refuses, self.refusal = 1_000_000, RefusedByServerError("denied the request", status=403)

    def accept(self) -> None:
        """Pods can be written again."""
        self.refuses = 0

    def is_at(self, pod: Pod, text: str | None, **fields: Any) -> None:
        """What the API server has of a pod, which the cache does not show yet. `fields`: see `put`."""
        self.there[pod.metadata.name] = self._made(pod.metadata.name, text, **fields)

    def _family_of(self, pod: Pod) -> Family:
        return self.family(pod)

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()

    async def patch(
        self, resource: object, name: str, namespace: str, patch: Mapping[str, Any], *, subresource: str | None = None
    ) -> None:
        self.patched.append((name, patch["metadata"]["annotations"]))
        self.was_patched.set()
        if self.at_patch is not None:
            self.at_patch()
            self.at_patch = None
        if self.refuses:
            self.refuses -= 1
            raise self.refusal

    async def find(self, resource: object, name: str, namespace: str, *, into: type[Pod]) -> Pod | None:
        return self.there.get(name) or self.pods.get(name, namespace)

    def put(self, name: str = "md-0", text: str | None = None, **fields: Any) -> Pod:
        """`fields`: uid, deleted, disrupted, phase, scheduler, of: annotations."""
        pod = self._made(name, text, **fields)
        self.pods._put(pod)
        return pod

    def _made(self, name: str, text: str | None, **fields: Any) -> Pod:
        self._version += 1
        annotations = {names.ID: "md", names.INDEX: name[-1], **fields.get("of", {})}
        if text is not None:
            annotations[names.EVICTION_REQUESTED] = text
        metadata = Metadata(
            name=name,
            namespace="bio",
            uid=fields.get("uid", f"uid-{name}"),
            resource_version=str(self._version),
            annotations=annotations,
            deletion_timestamp="2026-05-01T12:00:00Z" if fields.get("deleted") else None,
        )
        spec = PodSpec(node_name="n1", scheduler_name=fields.get("scheduler", "mine"))
        disrupted = Condition("DisruptionTarget", "True", PREEMPTION)
        conditions = (disrupted,) if fields.get("disrupted") else ()
        return Pod(metadata, spec, PodStatus(fields.get("phase", "Running"), conditions=conditions))


def _is_mine(pod: Pod) -> bool:
    return pod.spec.scheduler_name == "mine"


@asynccontextmanager
async def followed(cluster: Cluster) -> AsyncIterator[asyncio.Queue[Report]]:
    """What is reported."""
    heard: asyncio.Queue[Report] = asyncio.Queue()
    reading = asyncio.Event()

    async def read() -> None:
        async with aclosing(cluster.evictions.reports()) as reports:  # type: ignore[type-var]  # it is a generator
            reading.set()
            async for report in reports:
                heard.put_nowait(report)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in (read(), cluster.evictions.run())]
        await reading.wait()
        await asyncio.sleep(0)
        yield heard
        for task in tasks:
            task.cancel()


async def preempted(heard: asyncio.Queue[Report]) -> Preempted:
    async with asyncio.timeout(60):
        report = await heard.get()
    assert isinstance(report, Preempted)
    return report


async def cancelled(heard: asyncio.Queue[Report]) -> str:
    async with asyncio.timeout(60):
        report = await heard.get()
    assert isinstance(report, PreemptionCancelled)
    assert report.why == NOT_WANTED
    return report.signal_uid


async def pending(cluster: Cluster) -> AsyncIterator[Preempted]:
    """What a reader is told first."""
    async with aclosing(cluster.evictions.reports()) as reports:  # type: ignore[type-var]  # it is a generator
        report = await anext(reports)
        assert isinstance(report, Preempted)
        yield report


async def nothing(heard: asyncio.Queue[Report]) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert heard.empty()
