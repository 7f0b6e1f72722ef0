"""docs/operations.md tells of every metric and every alert that there is, and of no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from cedana_sched.agent.budget import DumpMetrics
from cedana_sched.cluster.coordinator.adapters import AdapterMetrics
from cedana_sched.cluster.coordinator.metrics import CoordinatorMetrics
from cedana_sched_armada import metrics as armada
from cedana_sched_volcano.extender.metrics import Metrics as ExtenderMetrics
from cedana_sched_webhooks.metrics import Metrics as WebhooksMetrics

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/operations.md").read_text()
ALERTS = (ROOT / "manifests/chart/templates/monitoring.yaml").read_text()


def section(name: str) -> str:
    return PAGE.split(f"\n### {name}\n")[1].split("\n###")[0]


def metrics() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names, and labels in their order, of every metric of ours."""
    registry = CollectorRegistry()
    CoordinatorMetrics(registry)
    AdapterMetrics(registry)
    DumpMetrics(registry)
    registries = (registry, REGISTRY, ExtenderMetrics().registry, WebhooksMetrics().registry)
    assert armada.FOLLOWED in REGISTRY._collector_to_names
    for collector in (collector for one in registries for collector in one._collector_to_names):
        if isinstance(collector, MetricWrapperBase) and collector._name.startswith("cedana_sched_"):
            name = f"{collector._name}_total" if collector._type == "counter" else collector._name
            yield name, tuple(collector._labelnames)


def test_the_page_has_every_metric_with_its_labels() -> None:
    rows = re.findall(r"^\| `(cedana_sched_\w+)` \| ([^|]*)\|", section("Metrics"), re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == dict(metrics())


def test_the_page_has_every_alert() -> None:
    told = re.findall(r"^\| `(CedanaSched\w+)` \|", section("Alerts"), re.MULTILINE)
    assert told == re.findall(r"- alert: (\w+)", ALERTS)


@pytest.mark.parametrize("expression", re.findall(r"expr: (.+)", ALERTS))
def test_alerts_are_about_metrics_that_there_are(expression: str) -> None:
    asked = {name.removesuffix("_count") for name in re.findall(r"cedana_sched_\w+", expression)}
    assert asked <= {name for name, _ in metrics()}
