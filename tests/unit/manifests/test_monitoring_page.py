"""docs/operations.md tells of every metric, word and alert that there is, and of no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from cedana_sched.agent.dump_budget import DumpMetrics
from cedana_sched.cluster.coordinator.adapter_supervision import AdapterMetrics
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.cluster.coordinator.metrics import CoordinatorMetrics
from cedana_sched.cluster.node.foreign_socket_monitor import HoldPortMetrics
from cedana_sched.eviction_holds import decision, pod_eviction_rule
from cedana_sched_armada import metrics as armada
from cedana_sched_volcano.extender.claims import Word
from cedana_sched_volcano.extender.metrics import Metrics as ExtenderMetrics
from cedana_sched_webhooks.holds import pod_eviction_hold as handler
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
    HoldPortMetrics(registry)
    CredentialMetrics(registry)
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


def test_the_page_has_every_word_of_the_webhook_that_holds_pods() -> None:
    """What stands first in what its code decides or answers, and what the server says of a review by itself."""
    source = "".join(Path(str(one.__file__)).read_text() for one in (decision, pod_eviction_rule, handler))
    decided = re.findall(r'\b(?:Decision|Answer)\("([\w-]+)"', source)
    told = " ".join(section("Metrics").split()).split("`/mutate/pods/status`, is")[1].split("`decision` of")[0]
    assert sorted(re.findall(r"`([\w-]+)`", told)) == sorted(
        {*decided, pod_eviction_rule.KEPT, decision.NOT_HELD, decision.UNHELD, "unreadable", "failed"}
    )


def test_the_page_has_every_word_of_the_extender() -> None:
    told = " ".join(section("Metrics").split()).split("`decision` of the extender is")[1]
    assert re.findall(r"`([\w-]+)`", told) == [*get_args(Word), "not-ready", "busy", "unreadable", "failed"]


def test_alerts_are_raised_after_the_time_that_the_page_says() -> None:
    told = dict(re.findall(r"^\| `(CedanaSched\w+)` \| ([^|]*)\|", section("Alerts"), re.MULTILINE))
    for rule in ALERTS.split("- alert: ")[1:]:
        when = told[rule.split("\n", 1)[0]]
        assert re.findall(r"for (\d+) min", when) == re.findall(r"^ +for: (\d+)m$", rule, re.MULTILINE), when
        if within := re.findall(r"within (\d+) min", when):
            assert within == re.findall(r"\[(\d+)m\]", rule), when


@pytest.mark.parametrize("expression", re.findall(r"expr: (.+)", ALERTS))
def test_alerts_are_about_metrics_that_there_are(expression: str) -> None:
    asked = {name.removesuffix("_count") for name in re.findall(r"cedana_sched_\w+", expression)}
    assert asked <= {name for name, _ in metrics()}
