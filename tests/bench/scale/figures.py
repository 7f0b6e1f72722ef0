"""What the audit log and the kernel say of one preemption of many: times, writes, processor time, memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from tests.cluster.fixtures.audit import Audit, Write
from tests.e2e.product.queues import KUEUE
from tests.e2e.product.rendering import NAMESPACE

COORDINATOR = f"system:serviceaccount:{NAMESPACE}:cedana-sched-coordinator"
AGENTS = "kubernetes-admin"
"""As whom the agents of fake nodes write: the administrator."""


class Usage(msgspec.Struct, frozen=True):
    """Of one process: processor seconds so far, and the most memory that it ever had (bytes)."""

    cpu_seconds: float
    peak_bytes: int


class Figures(msgspec.Struct, frozen=True):
    """One preemption.

    Attributes:
        pods, victims: how many there were.
        order_seconds: for each victim, from Kueue's word on its Workload to the write that orders its node to freeze.
        release_seconds: for each Job, from the same to its release.
        coordinator_writes, agent_writes: to our objects, a victim.
        coordinator_cpu_seconds: in all, from the first word to the last release.
        coordinator_peak_bytes: of the process.
        seconds: from the first word to the last release.
    """

    pods: int
    victims: int
    order_seconds: list[float]
    release_seconds: list[float]
    coordinator_writes: float
    agent_writes: float
    coordinator_cpu_seconds: float
    coordinator_peak_bytes: int
    seconds: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def figures_of(audit: Audit, namespace: str, pods: int, victims: int, before: Usage, after: Usage) -> Figures:
    """Read one preemption out of the audit log."""
    writes = audit.writes(namespace=namespace)
    evicted = {job_of(one.name): one.received for one in reversed(writes) if _is_eviction(one)}
    jobs = {one.name: _job_of_checkpoint(one) for one in writes if _is_new_checkpoint(one)}
    ordered = {one.name: one for one in reversed(writes) if _orders(one, "Freeze")}
    releases = [one for one in writes if one.user == COORDINATOR and one.resource == "jobs" and one.code < 300]
    begin, end = min(evicted.values()), max(one.answered for one in releases)
    ours = [one for one in writes if one.resource.split("/")[0] in {"checkpoints", "preemptionholds", "restores"}]
    journal = [one for one in audit.writes(namespace=NAMESPACE, resource="configmaps") if one.user == COORDINATOR]
    return Figures(
        pods=pods,
        victims=victims,
        order_seconds=[_seconds(evicted[jobs[one.name]], one.answered) for one in ordered.values()],
        release_seconds=[_seconds(evicted[one.name], one.answered) for one in releases if one.name in evicted],
        coordinator_writes=(_count(ours, COORDINATOR) + _between(journal, begin, end)) / victims,
        agent_writes=_count(ours, AGENTS) / victims,
        coordinator_cpu_seconds=after.cpu_seconds - before.cpu_seconds,
        coordinator_peak_bytes=after.peak_bytes,
        seconds=_seconds(begin, end),
    )


def job_of(workload: str) -> str:
    """Kueue calls a Job's Workload `job-<name>-<hash>`."""
    return workload.removeprefix("job-").rpartition("-")[0]


def row(one: Figures) -> list[str]:
    """Cells of a table."""
    return [
        f"{one.pods:,} pods, {one.victims:,} victims",
        f"{percentile(one.order_seconds, 0.5) * 1e3:.0f} / {percentile(one.order_seconds, 0.99) * 1e3:.0f} ms",
        f"{statistics.median(one.release_seconds):.1f} / {max(one.release_seconds):.1f} s",
        f"{one.coordinator_writes:.1f}",
        f"{one.agent_writes:.1f}",
        f"{1e3 * one.coordinator_cpu_seconds / one.victims:.1f} ms",
        f"{one.coordinator_peak_bytes / (1 << 20):.0f} MiB",
        f"{one.seconds:.1f} s",
    ]


HEADS = (
    "",
    "signal → order, p50 / p99",
    "signal → release, median / last",
    "coordinator's writes a victim",
    "agents' writes a victim",
    "coordinator's CPU a victim",
    "coordinator's peak",
    "all released after",
)


def _is_eviction(write: Write) -> bool:
    if write.user != KUEUE or write.resource != "workloads/status" or not isinstance(write.body, dict):
        return False
    conditions = write.body.get("status", {}).get("conditions") or []
    return any(one.get("type") == "Evicted" and one.get("status") == "True" for one in conditions)


def _is_new_checkpoint(write: Write) -> bool:
    return write.resource == "checkpoints" and write.verb == "create" and write.code < 300


def _job_of_checkpoint(write: Write) -> str:
    """An indexed Job's pods are called `<job>-<index>-<hash>`."""
    pod: str = write.body["spec"]["pod"]["name"]
    return pod.rsplit("-", 2)[0]


def _orders(write: Write, kind: str) -> bool:
    if write.resource != "checkpoints/status" or not isinstance(write.body, dict):
        return False
    order = (write.body.get("status") or {}).get("order") or {}
    return bool((order.get("order") or {}).get("type") == kind)


def _count(writes: Iterable[Write], user: str) -> int:
    return sum(one.user == user for one in writes)


def _between(writes: Iterable[Write], begin: datetime, end: datetime) -> int:
    return sum(begin <= one.received <= end for one in writes)


def _seconds(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()
