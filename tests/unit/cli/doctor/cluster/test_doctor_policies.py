"""Whether the doctor misses an admission policy of the chart, or one that denies nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cedana_sched.cli.doctor.cluster.admission_policies import BINDINGS, KEPT, KEPT_OF_KUEUE, POLICIES, examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster, ours

CHART = Path(__file__).parents[5] / "manifests" / "chart" / "templates"


def policy(ending: str, failure: str = "Fail") -> Object:
    metadata = {"name": f"{RELEASE}-{ending}", "labels": ours("coordinator")}
    return {"metadata": metadata, "spec": {"failurePolicy": failure}}


def binding(ending: str, *actions: str) -> Object:
    metadata = {"name": f"of-{ending}", "labels": ours("coordinator")}
    return {"metadata": metadata, "spec": {"policyName": f"{RELEASE}-{ending}", "validationActions": list(actions)}}


def settings(*adapters: str) -> Object:
    data = {"coordinator.json": json.dumps({"adapters": adapters}), "agent.json": "{}"}
    return {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data}


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster().put(POLICIES, *map(policy, KEPT)).put(CONFIG_MAPS, settings("volcano"))
    return cluster.put(BINDINGS, *(binding(ending, "Deny") for ending in KEPT))


async def test_all_that_deny_are_well(cluster: Cluster) -> None:
    (finding,) = await cluster.findings(examine)
    assert finding.startswith("ok all deny: agent, narrowed-configurations")


async def test_with_kueue_there_are_more(cluster: Cluster) -> None:
    cluster.there[CONFIG_MAPS] = [settings("kueue")]
    assert await cluster.findings(examine) == [
        f"fail there is no ValidatingAdmissionPolicy cedana-sched-{ending}: {otherwise}"
        for ending, otherwise in KEPT_OF_KUEUE.items()
    ]
    cluster.put(POLICIES, *map(policy, KEPT_OF_KUEUE))
    cluster.put(BINDINGS, *(binding(ending, "Deny") for ending in KEPT_OF_KUEUE))
    (finding,) = await cluster.findings(examine)
    assert finding.startswith("ok all deny: agent, kueue-suspended-at")


async def test_a_policy_that_is_missing_says_what_it_kept(cluster: Cluster) -> None:
    del cluster.there[POLICIES][list(KEPT).index("records")]
    assert await cluster.findings(examine) == [
        f"fail there is no ValidatingAdmissionPolicy cedana-sched-records: {KEPT['records']}"
    ]


@pytest.mark.parametrize("actions", [("Warn", "Audit"), ()])
async def test_a_policy_that_only_warns_denies_nothing(cluster: Cluster, actions: tuple[str, ...]) -> None:
    place = list(KEPT).index("reserved-names")
    cluster.there[BINDINGS][place] = binding("reserved-names", *actions)
    (finding,) = await cluster.findings(examine)
    assert finding.startswith("fail no binding has cedana-sched-reserved-names deny anything")


async def test_a_policy_that_lets_through_what_it_cannot_judge_is_named(cluster: Cluster) -> None:
    cluster.there[POLICIES][0] = policy("agent", "Ignore")
    (finding,) = await cluster.findings(examine)
    assert finding.startswith("fail cedana-sched-agent lets through what it cannot judge")


def test_all_policies_of_the_chart_are_looked_for() -> None:
    """A policy of the chart is named in one file of templates, by a suffix or a list of them."""
    found = 0
    for file in CHART.rglob("*.yaml"):
        text = file.read_text()
        kinds = len(re.findall(r"^kind: ValidatingAdmissionPolicy$", text, re.MULTILINE))
        several = re.search(r'range \$policy := list((?: "[a-z]+")+)', text)
        found += kinds * (len(several[1].split()) if several else 1)
    assert found == len(KEPT) + len(KEPT_OF_KUEUE)
