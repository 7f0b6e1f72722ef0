"""Reports periodic snapshots of protected pods when they are due by their policy's interval."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from datetime import datetime
from typing import ClassVar

from cedana_sched.adapter.cluster_contract import ClusterAccess, Gangs
from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.adapter.protected_pods import find_identity, workload_of
from cedana_sched.coordinator.due_snapshot_signals import DueSnapshotSignals
from cedana_sched.coordinator.snapshot_schedule import RunningWorkload, SnapshotSchedule
from cedana_sched.kube.builtin_kinds import Pod, read_time
from cedana_sched.kube.index import Index
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.objects.base import utc_datetime_of
from cedana_sched.model.objects.eviction_mark import EvictionMark, read_mark
from cedana_sched.model.preemption import Release, Victim
from cedana_sched.model.records import CheckpointStep, Record

PAUSE_SECONDS = 2.0
"""Between two looks at all pods, each of which resolves the policies of thousands."""
STALE_MARGIN_SECONDS = 1.0
"""After an eviction mark has become stale: two clocks decide."""


class PeriodicPodSnapshots:
    """Implements `adapter.contract.Adapter`: it reports, and has nothing to release.

    `on_records_saved` must receive all records first, then every saved change.

    Args:
        cluster: access to the protected pods of served namespaces, and to their policies.
        checkpoints: all Checkpoints.
        has_intervals: whether any policy of the cluster has an interval.
        gangs: adapters whose pods may be members of gangs.
        now: seconds since the epoch.
    """

    name: ClassVar[str] = "periodic"

    def __init__(
        self,
        cluster: ClusterAccess,
        checkpoints: Informer[KnownCheckpoint],
        has_intervals: Callable[[], bool],
        gangs: Sequence[Gangs] = (),
        now: Callable[[], float] = SERVER_TIME.seconds,
    ) -> None:
        self._cluster = cluster
        self._synced = (cluster.pods.synced, checkpoints.synced)
        self._of_pod = Index(lambda one: one.spec.pod_ref.uid or None, checkpoints)
        self._has_intervals = has_intervals
        self._gangs = gangs
        self._schedule = SnapshotSchedule(self.name)
        self._now = now
        self._snapshots = DueSnapshotSignals(self._schedule, self._running_with_interval, now, PAUSE_SECONDS)
        self._stale: dict[str, asyncio.TimerHandle] = {}
        """By uid of a pod with an eviction mark: when that is stale. No change of the pod shows it."""
        cluster.pods.subscribe(self._on_pod_changed)

    def on_records_saved(self, records: Collection[Record], forgotten: Collection[Record]) -> None:
        """See `journal.OnRecordsSaved`."""
        self._schedule.on_records_saved(records, forgotten)
        self._snapshots.wake()

    def on_policies_changed(self) -> None:
        """Look again: an interval may have been added or changed."""
        self._snapshots.wake()

    async def reports(self) -> AsyncIterator[Report]:
        """Report each snapshot when it is due; one that was missed is due again."""
        for synced in self._synced:
            await synced.wait()
        async for signal in self._snapshots.signals():
            yield Preempted(signal)

    async def release(self, release: Release) -> None:
        """No-op: a periodic snapshot holds no eviction."""

    def _on_pod_changed(self, before: Pod | None, now: Pod | None) -> None:
        moment = utc_datetime_of(self._now())
        if (before is not None and _runs_on(before, moment)) != (now is not None and _runs_on(now, moment)):
            self._snapshots.wake()
        if before is not None and (timer := self._stale.pop(before.metadata.uid, None)) is not None:
            timer.cancel()
        if now is not None and (mark := _fresh_mark(now, moment)) is not None:
            pause = mark.seconds_left(moment) + STALE_MARGIN_SECONDS
            uid = now.metadata.uid
            self._stale[uid] = asyncio.get_running_loop().call_later(pause, self._on_stale, uid)

    def _on_stale(self, uid: str) -> None:
        self._stale.pop(uid, None)
        self._snapshots.wake()

    def _running_with_interval(self) -> Iterator[RunningWorkload]:
        if not self._has_intervals():
            return
        moment = utc_datetime_of(self._now())
        for pod in self._cluster.pods:
            identity = find_identity(pod) if _runs_on(pod, moment) else None
            if identity is None:
                continue
            policy = self._cluster.policies.policy_of_pod(pod)
            if policy.interval_seconds is not None:
                victim = Victim(workload_of(pod), identity, policy, self._gang_of(pod), pod.status.started_at)
                yield self._with_last_snapshot(victim)

    def _gang_of(self, pod: Pod) -> str | None:
        """Return the pod's gang; tenants may write a gang's name, so it is one of the namespace."""
        of_adapters = (one.gang_of(pod) for one in self._gangs)
        gang = next((gang for gang in of_adapters if gang is not None), None)
        return None if gang is None else f"{pod.metadata.namespace}/{gang}"

    def _with_last_snapshot(self, victim: Victim) -> RunningWorkload:
        saved = [
            (frozen, read_time(one.status.commit_time) or frozen)
            for one in self._of_pod.objects_of(victim.workload.uid)
            if one.metadata.namespace == victim.workload.namespace
            and one.status.step is CheckpointStep.READY
            and (frozen := read_time(one.status.freeze_time)) is not None
        ]
        if not saved:
            return RunningWorkload(victim)
        frozen, committed = max(saved)
        return RunningWorkload(victim, frozen, max(committed - frozen, 0.0))


def _fresh_mark(pod: Pod, now: datetime) -> EvictionMark | None:
    """Return its eviction mark; None if there is none, or it is a remnant: it may never be removed."""
    mark = read_mark(pod.metadata.annotations)
    return mark if mark is not None and mark.is_fresh(now) else None


def _runs_on(pod: Pod, now: datetime) -> bool:
    """Whether it is protected and runs, and is not about to end."""
    metadata = pod.metadata
    is_leaving = metadata.deletion_timestamp is not None or pod.is_evicted or _fresh_mark(pod, now) is not None
    return pod.status.phase == "Running" and not is_leaving and names.NOT_PROTECTED not in metadata.annotations
