"""Whether the doctor names policies that do not count as their admin has written them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cedana_sched.cli.doctor.cluster.checkpoint_policies import check_selectors_count, examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, CONFIG_MAPS

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster, said


def policy(name: str, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


async def found(*bodies: Object) -> list[str]:
    return said(await examine(Cluster().put(CHECKPOINT_POLICIES, *bodies).reads))


async def test_policies_that_count_as_they_are() -> None:
    listed = policy("listed", imageMayChange=True, allowedNamespaces={"from": "Names", "names": ["bio"]})
    default = policy("default", imageMayChange=True)
    assert await found(listed, default, policy("plain")) == ["ok 3 count as they are written"]


@pytest.mark.parametrize(
    ("spec", "finding"),
    [
        ({"onCheckpointFailure": "KeepRunning", "imageMayChange": True},
         "warn CheckpointPolicy p says spec.onCheckpointFailure, spec.imageMayChange, which applies to no pod"),
        ({"deadlineSeconds": -1}, "fail CheckpointPolicy p cannot be read: no new pod that names it is protected"),
    ],
)  # fmt: skip
async def test_a_policy_that_does_not_is_named(spec: dict[str, Any], finding: str) -> None:
    assert await found(policy("plain"), policy("p", **spec)) == [finding]


async def test_a_cluster_without_us_has_none() -> None:
    assert said(await examine(Cluster().reads)) == ["ok 0 count as they are written"]


@pytest.mark.parametrize("enabled", [False, True])
async def test_a_policy_that_selects_pods_of_a_release_that_opts_in_none_is_named(enabled: bool) -> None:
    coordinator = {"adapterSettings": {"kubernetes": {"podSelectors": True}}} if enabled else {}
    data = {"coordinator.json": json.dumps(coordinator), "agent.json": "{}"}
    told = {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data}
    policies = policy("plain"), policy("p", podSelector={"matchLabels": {"app": "md"}})
    findings = (
        await Cluster().put(CONFIG_MAPS, told).put(CHECKPOINT_POLICIES, *policies).findings(check_selectors_count)
    )
    named = "warn CheckpointPolicy p has a podSelector, which opts in no pod"
    assert findings == ([] if enabled else [named])
