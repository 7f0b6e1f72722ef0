"""Volcano as the conformance suite plays it: its scheduler asks for what it has decided, our webhook refuses or allows.

It asks again whenever something in the cluster changes; the real one once a second.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import ClassVar

import msgspec

from cedana_sched.adapter.conformance import RunningWorkload, SchedulerCapability
from cedana_sched.adapter.conformance.cluster_stage import ClusterStage
from cedana_sched.eviction_holds.pod_eviction_rule import decide
from cedana_sched.kube.builtin_kinds import PREEMPTION
from cedana_sched.kube.client import Object
from cedana_sched.kube.own_kinds.cached_hold import PreemptionHold
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import (
    STALE_SECONDS,
    EvictionMark,
    read_mark,
    refreshed_mark,
    serialized_mark,
)
from cedana_sched_volcano.adapter import VolcanoAdapter
from cedana_sched_volcano.objects import GROUP_NAME, POD_GROUPS, SCHEDULER_NAME

NAMESPACE = "bio"
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": PREEMPTION}


class VolcanoStage(ClusterStage):
    """Each job is a PodGroup; `preempt` makes the scheduler want one pod of it."""

    adapter_class: ClassVar = VolcanoAdapter
    lacks: ClassVar = {SchedulerCapability.STARTS: "its workloads are pods"}

    def __init__(self) -> None:
        super().__init__()
        self._wanted: list[RunningWorkload] = []
        self._decisions = 0
        self.api.subscribe(self._ask)

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        name = f"md{next(self.numbers)}"
        metadata = {"name": name, "namespace": NAMESPACE}
        self.api.put(POD_GROUPS, {"metadata": metadata, "spec": {"minMember": members}})
        pods = tuple(self._pod(f"{name}-{i}", i, protected, deadline_seconds) for i in range(members))
        await self.wait_until_reported()
        return pods

    async def preempt(self, victim: RunningWorkload) -> None:
        self._decisions += 1
        self._wanted.append(victim)
        self._ask()

    async def take_back(self, victim: RunningWorkload) -> None:
        """The scheduler has not asked for so long that the last mark counts no more."""
        self._wanted.remove(victim)
        mark = self._mark_of(victim)
        assert mark is not None
        long_ago = (self._now() - timedelta(seconds=2 * STALE_SECONDS)).isoformat()
        self._write(victim, msgspec.structs.replace(mark, last=long_ago))
        await self.wait_until_reported()

    async def preempt_with_deadline(self, victim: RunningWorkload) -> float:
        """The webhook was not there: the pod is being deleted, and its preStop holds it."""
        ends_at = datetime(2040, 1, 1, tzinfo=UTC)
        self.change_pod(victim, {"status": {"conditions": [DISRUPTED]}})
        self.change_pod(victim, {"metadata": {"deletionTimestamp": ends_at.strftime("%Y-%m-%dT%H:%M:%SZ")}})
        return ends_at.timestamp()

    async def finish(self, victim: RunningWorkload) -> None:
        self.change_pod(victim, {"status": {"phase": "Succeeded"}})

    async def wait_until_returned(self, victim: RunningWorkload) -> RunningWorkload:
        again = self._pod(victim.workload.name, 0)
        await self.wait_until_reported()
        return again

    def _pod(self, name: str, index: int, protected: bool = True, deadline_seconds: float = 600.0) -> RunningWorkload:
        return self.put_pod(
            name,
            index=index,
            protected=protected,
            deadline_seconds=deadline_seconds,
            annotations={GROUP_NAME: name.rpartition("-")[0]},
            scheduler=SCHEDULER_NAME,
        )

    def _ask(self) -> None:
        """One cycle of the scheduler."""
        for victim in tuple(self._wanted):
            pod = self.pod_of(victim)
            if pod is None or pod["status"]["phase"] != "Running":
                self._wanted.remove(victim)
            elif self._may_be_evicted(victim):
                self._wanted.remove(victim)
                self.change_pod(victim, {"status": {"conditions": [DISRUPTED]}})
                self.change_pod(victim, {"metadata": {"deletionTimestamp": "2040-01-01T00:00:00Z"}})
                self.remove_pod(victim)

    def _may_be_evicted(self, victim: RunningWorkload) -> bool:
        """Our webhook's answer, which marks the pod when it is no."""
        if victim.identity is None:
            return True
        holds = [msgspec.convert(one, PreemptionHold) for one in self.holds() if victim.uid in one["spec"]["pods"]]
        if decide(victim.uid, self._mark_of(victim), holds, self._now()).refused is None:
            return True
        if (mark := refreshed_mark(self._mark_of(victim), "volcano-scheduler", self._now())) is not None:
            self._write(victim, mark)
        return False

    def _mark_of(self, victim: RunningWorkload) -> EvictionMark | None:
        pod: Object = self.pod_of(victim) or {}
        return read_mark(pod.get("metadata", {}).get("annotations", {}))

    def _write(self, victim: RunningWorkload, mark: EvictionMark) -> None:
        self.change_pod(victim, {"metadata": {"annotations": {names.EVICTION_REQUESTED: serialized_mark(mark)}}})

    def _now(self) -> datetime:
        """No two decisions are of one moment."""
        return SERVER_TIME.now() + timedelta(seconds=self._decisions)
