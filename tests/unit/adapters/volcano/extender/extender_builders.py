"""Questions as Volcano 1.14.1 asks them, and a holder in memory."""

from __future__ import annotations

import json
from typing import Any

from cedana_sched_volcano.extender.pod_states_interface import EvictionRequester, ProtectedPodState

CPU = 1000.0


class KnownPods:
    """Answers what tests say of pods, and remembers what it is asked and told."""

    def __init__(self, **standings: ProtectedPodState) -> None:
        self.is_synced = True
        self.standings = standings
        self.room: dict[str, dict[str, float]] = {}
        self.looked: list[str] = []
        self.told: list[tuple[str, EvictionRequester]] = []

    def state_of(self, pod_uid: str) -> ProtectedPodState | None:
        self.looked.append(pod_uid)
        return self.standings.get(pod_uid)

    def record_eviction_request(self, pod_uid: str, by: EvictionRequester) -> None:
        self.told.append((pod_uid, by))

    def free_resources(self, node: str, preemptor: str) -> dict[str, float] | None:
        return self.room.get(node)

    @property
    def wanted(self) -> set[str]:
        """Pods of which it was told, since this was asked last."""
        found = {uid for uid, _ in self.told}
        self.told.clear()
        return found


def task(uid: str, job: str, *, cpu: float = 1.0, node: str = "", priority: int = 0, **more: Any) -> dict[str, Any]:
    """A `TaskInfo`; `created` and `queue` are its pod's, `filler` is more of the pod, in bytes."""
    resources = {"MilliCPU": cpu * CPU, "Memory": 0, "ScalarResources": {"pods": 1}, "MaxTaskNum": 0}
    metadata: dict[str, Any] = {"name": uid, "namespace": "lab", "uid": uid}
    metadata["creationTimestamp"] = more.get("created", "2026-05-01T12:00:00Z")
    metadata["managedFields"] = "x" * more.get("filler", 0)
    if queue := more.get("queue"):
        metadata["annotations"] = {"volcano.sh/queue-name": queue}
    return {
        "UID": uid,
        "Job": f"lab/{job}",
        "Name": uid,
        "Namespace": "lab",
        "TaskRole": "worker",
        "Resreq": resources,
        "InitResreq": resources,
        "NodeName": node,
        "Status": 32 if node else 1,
        "LastTransaction": None,
        "Priority": priority,
        "Preemptable": True,
        "NumaInfo": {"Policy": "", "ResMap": {}},
        "Pod": {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Running"}},
    }


def question(evictor: dict[str, Any], evictees: list[dict[str, Any]] | None) -> bytes:
    """As Go writes it."""
    return json.dumps({"evictor": evictor, "evictees": evictees}, separators=(",", ":")).encode()
