"""What the doctor says of Pod Security, in the product's namespace and in those of tenants."""

from __future__ import annotations

import pytest

from cedana_sched.cli.cluster_reader import MissingPermissionError
from cedana_sched.cli.doctor.cluster import pod_security
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import NAMESPACES, PODS
from cedana_sched.model.objects.names import PROTECTED

from .cluster_to_look_at import NAMESPACE, Cluster, ours, said


def namespace(name: str, level: str | None = None) -> Object:
    return {"metadata": {"name": name, "labels": {pod_security.ENFORCE: level} if level else {}}}


def pod(name: str, where: str, phase: str = "Running", **labels: str) -> Object:
    return {"metadata": {"name": name, "namespace": where, "labels": labels}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("level", "begins"),
    [
        ("privileged", "ok namespace cedana-system lets the agents be privileged"),
        ("baseline", "fail namespace cedana-system enforces baseline: no new agent starts"),
        ("restricted", "fail namespace cedana-system enforces restricted: no new agent starts"),
        (None, "warn namespace cedana-system has no label pod-security.kubernetes.io/enforce"),
    ],
)
async def test_the_agents_need_a_privileged_namespace(level: str | None, begins: str) -> None:
    cluster = Cluster().put(NAMESPACES, namespace(NAMESPACE, level), namespace("other", "privileged"))
    (finding,) = await cluster.findings(pod_security.check_product_namespace)
    assert finding.startswith(begins)


async def test_pods_of_others_in_our_namespace_are_named() -> None:
    cluster = Cluster().put(PODS, pod("agent-x", NAMESPACE, **ours("agent")), pod("theirs", "lab"))
    cluster.put(PODS, pod("over", NAMESPACE, "Succeeded"))
    assert await cluster.findings(pod_security.check_foreign_pods) == [
        "ok no other pods run in namespace cedana-system"
    ]
    cluster.put(PODS, pod("miner", NAMESPACE))
    assert await cluster.findings(pod_security.check_foreign_pods) == [
        "warn pods of others run in namespace cedana-system, which holds our Secrets: miner"
    ]


async def test_namespaces_of_protected_pods_that_allow_privileged_ones_are_named() -> None:
    protected = {PROTECTED: "true"}
    cluster = Cluster().put(PODS, *(pod("a", where, **protected) for where in ("bio", "bio", "ml", "chem", "art")))
    cluster.put(
        PODS, pod("b", "web"), pod("c", "old", "Succeeded", **protected), pod("d", "no", **{PROTECTED: "false"})
    )
    cluster.put(NAMESPACES, namespace("bio", "baseline"), namespace("ml", "restricted"), namespace("web"))
    cluster.put(NAMESPACES, namespace("chem"), namespace("art", "privileged"))
    (finding,) = said(await pod_security.check_tenant_namespaces(cluster.reads))
    assert "enforce neither baseline nor restricted: art, chem; pods may use" in finding


async def test_where_all_tenants_are_kept_in_bounds_it_is_well() -> None:
    cluster = Cluster()
    assert said(await pod_security.check_tenant_namespaces(cluster.reads)) == ["ok no protected pods run"]
    cluster.put(PODS, pod("a", "bio", **{PROTECTED: "true"})).put(NAMESPACES, namespace("bio", "baseline"))
    assert said(await pod_security.check_tenant_namespaces(cluster.reads)) == [
        "ok all namespaces with protected pods enforce baseline or restricted"
    ]


async def test_a_namespace_that_may_not_be_read_is_not_taken_for_wide() -> None:
    cluster = Cluster().put(PODS, pod("a", "bio", **{PROTECTED: "true"})).deny(NAMESPACES, None)
    with pytest.raises(MissingPermissionError, match="needs list on namespaces"):
        await pod_security.check_tenant_namespaces(cluster.reads)
    with pytest.raises(MissingPermissionError, match="needs get on namespaces"):
        await pod_security.check_product_namespace(cluster.reads, await cluster.installed())
