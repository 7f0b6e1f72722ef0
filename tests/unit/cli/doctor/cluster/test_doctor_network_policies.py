"""Whether the doctor misses a NetworkPolicy of a component that runs."""

from __future__ import annotations

from cedana_sched.cli.doctor.cluster.network_policies import NETWORK_POLICIES, examine
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import DEPLOYMENTS

from .cluster_to_look_at import NAMESPACE, Cluster, deployment, ours

COMPONENTS = ("agent", "coordinator", "prestop-proxy", "webhooks")


def policy(component: str, namespace: str = NAMESPACE) -> Object:
    return {"metadata": {"name": component, "namespace": namespace, "labels": ours(component)}}


async def test_one_for_every_component_is_well() -> None:
    cluster = Cluster().put(NETWORK_POLICIES, *map(policy, COMPONENTS))
    assert await cluster.findings(examine) == ["ok there is one for agent, coordinator, prestop-proxy, webhooks"]


async def test_the_missing_ones_are_named() -> None:
    cluster = Cluster().put(NETWORK_POLICIES, policy("agent"), policy("webhooks"), policy("prestop-proxy", "elsewhere"))
    assert await cluster.findings(examine) == ["warn no NetworkPolicy says who may call coordinator, prestop-proxy"]


async def test_an_extender_needs_one_as_well() -> None:
    cluster = Cluster().put(NETWORK_POLICIES, *map(policy, COMPONENTS)).put(DEPLOYMENTS, deployment("volcano-extender"))
    assert await cluster.findings(examine) == ["warn no NetworkPolicy says who may call volcano-extender"]
