"""One cycle of Volcano's `reclaim`, as far as an extender meets it (pkg/scheduler/actions/reclaim/reclaim.go, 1.14.1).

A task goes from node to node until what may be evicted there makes room for it; the evictions of a job happen together,
if all that it must have has got room, or not at all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from cedana_sched_volcano.extender.answering import answer_extender_call
from cedana_sched_volcano.extender.claims import Claims
from tests.unit.adapters.volcano.extender.extender_builders import CPU, KnownPods, question, task


@dataclass
class Preemptor:
    job: str
    cpus: list[float]
    least: int = 1


@dataclass
class Volcano:
    """Pods run on nodes; `idle` is in CPUs; `forbids` is what other plugins say."""

    claims: Claims
    holder: KnownPods
    idle: dict[str, float] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    forbids: Callable[[dict[str, Any]], bool] = lambda _: False
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    words: list[str] = field(default_factory=list)

    def run(self, uid: str, node: str, **fields: Any) -> None:
        self.pods[uid] = task(uid, fields.pop("job", f"job-{uid}"), node=node, **fields)
        self.idle.setdefault(node, 0.0)

    def cycle(self, *preemptors: Preemptor) -> set[str]:
        """The pods that are evicted in it."""
        evicted: set[str] = set()
        for preemptor in preemptors:
            idle, taken, placed = dict(self.idle), set[str](), 0
            for number, cpu in enumerate(preemptor.cpus):
                evictor = task(f"{preemptor.job}-{number}", preemptor.job, cpu=cpu, priority=100)
                placed += self._place(evictor, cpu, idle, taken, evicted)
            if placed >= preemptor.least:
                evicted |= taken
        for uid in evicted:
            del self.pods[uid]
        return evicted

    def _place(
        self, evictor: dict[str, Any], cpu: float, idle: dict[str, float], taken: set[str], evicted: set[str]
    ) -> bool:
        for node in self._in_any_order(self.idle):
            there = [pod for uid, pod in self.pods.items() if pod["NodeName"] == node and uid not in taken | evicted]
            if not there:
                continue
            answered = answer_extender_call(
                "reclaim", question(evictor, self._in_any_order(there)), self.holder, self.claims
            )
            self.words.append(answered.word)
            victims = [pod for pod in json.loads(answered.body)["victims"] if not self.forbids(pod)]
            if idle[node] + sum(pod["Resreq"]["MilliCPU"] / CPU for pod in victims) < cpu:
                continue
            victims.sort(key=lambda pod: pod["Pod"]["metadata"]["creationTimestamp"], reverse=True)
            victims.sort(key=lambda pod: pod["Priority"])
            for pod in victims:
                if idle[node] >= cpu:
                    break
                taken.add(pod["UID"])
                idle[node] += pod["Resreq"]["MilliCPU"] / CPU
            idle[node] -= cpu
            return True
        return False

    def _in_any_order(self, these: Iterable[Any]) -> list[Any]:
        """Go's maps have none."""
        found = list(these)
        self.chance.shuffle(found)
        return found
