"""What the audit log and the kernel say of one preemption of many: times, writes, processor time, memory."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from tests.bench.scale import usage
from tests.bench.scale.field import Size
from tests.bench.scale.usage import Usage
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.audit import Audit, Write
from tests.e2e.product.queues import KUEUE
from tests.e2e.product.rendering import NAMESPACE

COORDINATOR = f"system:serviceaccount:{NAMESPACE}:cedana-sched-coordinator"
AGENTS = "kubernetes-admin"
"""As whom the agents of fake nodes write: the administrator."""


class Figures(msgspec.Struct, frozen=True):
    """One preemption.

    Attributes:
        pods, victims, nodes: how many there were.
        bare_seconds: for each of as many objects, from the moment in which a bare client wants them all to the answer.
        noticed_seconds: for each victim, from Kueue's word on its Workload to our first request for it.
        order_seconds: for each victim, from the same to the write that orders its node to freeze.
        release_seconds: for each Job, from the same to its release.
        coordinator_writes, agent_writes: to our objects, a victim.
        coordinator: what it has used, from the first word to the last release; its peak since it began.
        api_server, etcd: the same of them.
        seconds: from the first word to the last release.
        load: how many processes wanted a processor when all was over (the average of a minute), others' work included.
    """

    pods: int
    victims: int
    nodes: int
    bare_seconds: list[float]
    noticed_seconds: list[float]
    order_seconds: list[float]
    release_seconds: list[float]
    coordinator_writes: float
    agent_writes: float
    coordinator: Usage
    api_server: Usage
    etcd: Usage
    seconds: float
    load: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of all does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Used(msgspec.Struct, frozen=True):
    """What our coordinator and the control plane have used so far."""

    coordinator: Usage
    api_server: Usage
    etcd: Usage

    @classmethod
    def now(cls, cluster: Cluster) -> Used:
        """Up to this moment."""
        return cls(usage.coordinators(cluster), usage.api_server(cluster), usage.etcd(cluster))


def figures_of(
    audit: Audit, namespace: str, size: Size, bare_seconds: Sequence[float], before: Used, after: Used
) -> Figures:
    """Read one preemption out of the audit log."""
    writes = audit.writes(namespace=namespace)
    evicted = {job_of(one.name): one.received for one in reversed(writes) if _is_eviction(one)}
    created = [one for one in writes if _is_new_checkpoint(one)]
    jobs = {one.name: _job_of_checkpoint(one) for one in created}
    ordered = {one.name: one for one in reversed(writes) if _orders(one, "Freeze")}
    releases = [one for one in writes if one.user == COORDINATOR and one.resource == "jobs" and one.code < 300]
    begin, end = min(evicted.values()), max(one.answered for one in releases)
    ours = [one for one in writes if one.resource.split("/")[0] in {"checkpoints", "preemptionholds", "restores"}]
    journal = [one for one in audit.writes(namespace=NAMESPACE, resource="configmaps") if one.user == COORDINATOR]
    return Figures(
        pods=size.pods,
        victims=size.victims,
        nodes=size.nodes,
        bare_seconds=list(bare_seconds),
        noticed_seconds=[_seconds(evicted[jobs[one.name]], one.received) for one in created],
        order_seconds=[_seconds(evicted[jobs[one.name]], one.answered) for one in ordered.values()],
        release_seconds=[_seconds(evicted[one.name], one.answered) for one in releases if one.name in evicted],
        coordinator_writes=(_count(ours, COORDINATOR) + _between(journal, begin, end)) / size.victims,
        agent_writes=_count(ours, AGENTS) / size.victims,
        coordinator=after.coordinator.since(before.coordinator),
        api_server=after.api_server.since(before.api_server),
        etcd=after.etcd.since(before.etcd),
        seconds=_seconds(begin, end),
        load=os.getloadavg()[0],
    )


def job_of(workload: str) -> str:
    """Kueue calls a Job's Workload `job-<name>-<hash>`."""
    return workload.removeprefix("job-").rpartition("-")[0]


def row(runs: Sequence[Figures]) -> list[str]:
    """Cells of a table, of several preemptions of one size."""
    first = runs[0]
    return [
        f"{first.pods:,} pods, {first.victims:,} victims, {first.nodes:,} nodes; {len(runs)} times",
        *(spread([get(one) for one in runs]) for get in COLUMNS.values()),
    ]


def spread(values: Sequence[float]) -> str:
    """The one in the middle, and all that there were."""
    middle, least, most = (_number(one) for one in (statistics.median(values), min(values), max(values)))
    return middle if least == most else f"{middle} ({least} to {most})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


COLUMNS: Mapping[str, Callable[[Figures], float]] = {
    "signal → first request, p50 (ms)": lambda one: 1e3 * percentile(one.noticed_seconds, 0.5),
    "signal → order, p50 (ms)": lambda one: 1e3 * percentile(one.order_seconds, 0.5),
    "signal → order, p99 (ms)": lambda one: 1e3 * percentile(one.order_seconds, 0.99),
    "a bare client creates as many objects, p99 (ms)": lambda one: 1e3 * percentile(one.bare_seconds, 0.99),
    "order to bare creation, p99 (ratio)": lambda one: (
        percentile(one.order_seconds, 0.99) / percentile(one.bare_seconds, 0.99)
    ),
    "signal → release, median (s)": lambda one: statistics.median(one.release_seconds),
    "all released after (s)": lambda one: one.seconds,
    "coordinator's writes to our objects and its journal, a victim": lambda one: one.coordinator_writes,
    "agents' writes to our objects, a victim": lambda one: one.agent_writes,
    "coordinator's CPU a victim (ms)": lambda one: 1e3 * one.coordinator.cpu_seconds / one.victims,
    "API server's CPU a victim (ms)": lambda one: 1e3 * one.api_server.cpu_seconds / one.victims,
    "etcd's CPU a victim (ms)": lambda one: 1e3 * one.etcd.cpu_seconds / one.victims,
    "coordinators that ended meanwhile": lambda one: one.coordinator.ended,
    "coordinator's peak since its start (MiB)": lambda one: one.coordinator.peak_bytes / (1 << 20),
    "load average of the machine": lambda one: one.load,
}


def table(sizes: Sequence[Sequence[Figures]]) -> str:
    """Markdown: a row for each figure, a column for each size."""
    columns = [row(runs) for runs in sizes]
    lines = [f"| | {' | '.join(column[0] for column in columns)} |", "|---|" + "---:|" * len(columns)]
    for number, name in enumerate(COLUMNS, 1):
        lines.append(f"| {name} | {' | '.join(column[number] for column in columns)} |")
    return "\n".join(lines)


def _is_eviction(write: Write) -> bool:
    if write.user != KUEUE or write.resource != "workloads/status" or not isinstance(write.body, dict):
        return False
    conditions = write.body.get("status", {}).get("conditions") or []
    return any(one.get("type") == "Evicted" and one.get("status") == "True" for one in conditions)


def _is_new_checkpoint(write: Write) -> bool:
    return write.resource == "checkpoints" and write.verb == "create" and write.code < 300


def _job_of_checkpoint(write: Write) -> str:
    """An indexed Job's pods are called `<job>-<index>-<hash>`."""
    pod: str = write.body["spec"]["podRef"]["name"]
    return pod.rsplit("-", 2)[0]


def _orders(write: Write, kind: str) -> bool:
    if not isinstance(write.body, dict):
        return False
    if write.resource == "checkpoints" and write.verb == "create":
        order = write.body["spec"].get("firstOrder") or {}
    elif write.resource == "checkpoints/status":
        order = (write.body.get("status") or {}).get("order") or {}
    else:
        return False
    return bool((order.get("order") or {}).get("type") == kind)


def _count(writes: Iterable[Write], user: str) -> int:
    return sum(one.user == user for one in writes)


def _between(writes: Iterable[Write], begin: datetime, end: datetime) -> int:
    return sum(begin <= one.received <= end for one in writes)


def _seconds(begin: datetime, end: datetime) -> float:
    return (end - begin).total_seconds()
