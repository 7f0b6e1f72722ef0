"""What is read out of the audit log of a preemption at scale, and how it is told."""

from __future__ import annotations

import datetime as dt
from typing import Any, cast

from tests.bench.scale.field import Size
from tests.bench.scale.figures import COORDINATOR, Figures, Used, figures_of, percentile, spread, table
from tests.bench.scale.report import Found, Load, report
from tests.bench.scale.usage import Usage
from tests.bench.scale.webhook_load import Answers
from tests.cluster.fixtures.audit import Audit, Write
from tests.e2e.product.queues import KUEUE
from tests.e2e.product.rendering import NAMESPACE

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EVICTED = {"status": {"conditions": [{"type": "Evicted", "status": "True"}]}}
ORDER = {"status": {"order": {"number": 1, "order": {"type": "Freeze"}}}}
FIRST = {"firstOrder": ORDER["status"]["order"]}
LATER = {"status": {"step": "Frozen", **ORDER["status"]}}


def _write(user: str, verb: str, resource: str, name: str, body: Any, at: float, namespace: str = "team") -> Write:
    received = BEGAN + dt.timedelta(seconds=at)
    answered = received + dt.timedelta(milliseconds=10)
    return Write(user, verb, resource, namespace, name, 200, "", body, received, answered)


class Log:
    """The audit log of one preemption of two pods of one Job."""

    def __init__(self) -> None:
        pods = {f"md-{index}-s": {"spec": {"podRef": {"name": f"md-0-{index}-x7k2p"}, **FIRST}} for index in range(2)}
        self.all = [
            _write(KUEUE, "patch", "workloads/status", "job-md-0-48e44", EVICTED, 0.0),
            _write(COORDINATOR, "update", "configmaps", "cedana-sched-journal", {}, 0.1, NAMESPACE),
            *(_write(COORDINATOR, "create", "checkpoints", name, body, 0.2) for name, body in pods.items()),
            *(_write(COORDINATOR, "patch", "checkpoints/status", name, ORDER, 0.3) for name in pods),
            *(_write("kubernetes-admin", "patch", "checkpoints/status", name, {}, 0.5) for name in pods),
            *(_write(COORDINATOR, "patch", "checkpoints/status", name, LATER, 0.7) for name in pods),
            _write(COORDINATOR, "patch", "jobs", "md-0", {}, 1.0),
        ]

    def writes(self, *, namespace: str = "", resource: str = "") -> list[Write]:
        return [one for one in self.all if one.namespace == namespace and resource in ("", one.resource)]


def _figures() -> Figures:
    nothing = Usage(seconds_of={7: 1.0})
    after = Used(Usage(0.0, 100 << 20, {7: 1.5}), Usage(seconds_of={7: 3.0}), Usage(seconds_of={7: 1.25}))
    return figures_of(
        cast("Audit", Log()), "team", Size(100, 2, 50), [0.07, 0.1], Used(nothing, nothing, nothing), after
    )


def test_one_preemption_is_read_out_of_the_audit_log() -> None:
    found = _figures()
    assert found.noticed_seconds == [0.2, 0.2]
    assert found.order_seconds == [0.21, 0.21], "the first write of an order counts, not a later one that shows it too"
    assert found.release_seconds == [1.01]
    assert found.coordinator_writes == (2 + 2 + 2 + 1) / 2
    assert found.agent_writes == 1
    assert (found.coordinator.cpu_seconds, found.api_server.cpu_seconds, found.etcd.cpu_seconds) == (0.5, 2.0, 0.25)


def test_one_that_ended_is_counted_and_does_not_make_the_next_one_cheaper() -> None:
    used = Usage(1.0, 0, {8: 1.0, 9: 0.5}).since(Usage(60.0, 0, {7: 59.0, 8: 0.75}))
    assert (used.cpu_seconds, used.ended) == (0.75, 1)


def test_the_table_has_a_column_for_each_size() -> None:
    lines = table([[_figures()], [_figures(), _figures()]]).splitlines()
    assert lines[0] == "| | 100 pods, 2 victims, 50 nodes; 1 times | 100 pods, 2 victims, 50 nodes; 2 times |"
    assert "| order to bare creation, p99 (ratio) | 2.1 | 2.1 |" in lines
    assert "| coordinator's CPU a victim (ms) | 250 | 250 |" in lines


def test_what_is_repeated_is_told_with_its_spread() -> None:
    assert spread([2.0]) == spread([2.0, 2.0]) == "2.0"
    assert spread([1.0, 300.0, 2.0]) == "2.0 (1.0 to 300)"


def test_the_share_of_all() -> None:
    assert percentile(range(100), 0.99) == 99
    assert percentile([7.0], 0.99) == 7.0


def test_the_webhooks_are_told_from_outside_and_by_their_own_count() -> None:
    loads = [Load(Answers([0.002] * 99 + [0.5], share), Usage(0.06, 0)) for share in (0.98, 1.0)]
    text = report(Found(webhooks=loads))
    assert "200 in all" in text
    assert "p50 2.0 ms, p99 500 ms; 0.6 ms of CPU a call" in text
    assert "99.0 (98.0 to 100) % were within 10 ms" in text
