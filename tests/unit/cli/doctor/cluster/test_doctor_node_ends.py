"""Whether the doctor names nodes whose end comes unannounced."""

from __future__ import annotations

import json

import pytest

from cedana_sched.cli.cluster_reader import MissingPermissionError
from cedana_sched.cli.doctor.cluster.node_ends import (
    MOST_KUBELETS,
    PROVIDERS_BY_SCHEME,
    check_notices,
    check_shutdowns,
)
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS, NODES, PODS
from cedana_sched.model.objects.node_interruption import InterruptionSource

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster, ours

LONG = {"shutdownGracePeriod": "3m0s", "shutdownGracePeriodCriticalPods": "1m0s"}
NONE = {"shutdownGracePeriod": "0s", "shutdownGracePeriodCriticalPods": "0s"}


def cluster_of(*provider_ids: str, provider: str = "none", adapters: tuple[str, ...] = ("kubernetes",)) -> Cluster:
    data = {
        "coordinator.json": json.dumps({"adapters": adapters}),
        "agent.json": json.dumps({"interruptions": {"provider": provider}}),
    }
    cluster = Cluster().put(CONFIG_MAPS, {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data})
    for number, provider_id in enumerate(provider_ids):
        metadata: Object = {"name": f"agent-{number}", "namespace": NAMESPACE, "labels": ours("agent")}
        cluster.put(PODS, {"metadata": metadata, "spec": {"nodeName": f"n{number}"}})
        cluster.put(NODES, {"metadata": {"name": f"n{number}"}, "spec": {"providerID": provider_id}})
        cluster.kubelets[f"n{number}"] = LONG
    return cluster.put(NODES, {"metadata": {"name": "control-plane"}, "spec": {"providerID": "aws:///z/i-9"}})


@pytest.mark.parametrize(
    ("cluster", "finding"),
    [
        (
            cluster_of("aws:///z/i-1", "aws:///z/i-2", "kind://podman/n"),
            "warn agent.interruptions.provider is 'none', so no notices are read, and 2 nodes are of aws: n0, n1",
        ),
        (
            cluster_of("gce://p/z/i", provider="azure"),
            "warn agent.interruptions.provider is 'azure', so notices of azure are read, and 1 nodes are of gcp: n0",
        ),
        (cluster_of("azure:///s", provider="azure"), "ok agent.interruptions.provider is 'azure', as 1 nodes need"),
        (cluster_of("azure:///s", provider="auto"), "ok agent.interruptions.provider is 'auto', as 1 nodes need"),
        (cluster_of("", "k3s://n"), "ok agent.interruptions.provider is 'none', as 2 nodes need"),
    ],
    ids=("none", "another", "theirs", "detected", "no cloud"),
)
async def test_notices_that_no_agent_reads_are_found(cluster: Cluster, finding: str) -> None:
    assert await cluster.findings(check_notices) == [finding]


@pytest.mark.parametrize(
    ("cluster", "value"),
    [
        (cluster_of("aws:///i"), "aws"),
        (cluster_of("aws:///i", "gce://i"), "auto"),
        (cluster_of("aws:///i", "gce://i", provider="gcp"), "auto"),
    ],
)
async def test_remedy_is_the_value_that_serves_all_nodes(cluster: Cluster, value: str) -> None:
    found = await check_notices(cluster.reads, await cluster.installed())
    assert {one.remedy.rpartition("=")[2] for one in found} == {value}


async def test_time_that_kubelets_give_is_found() -> None:
    cluster = cluster_of("", "")
    assert await cluster.findings(check_shutdowns) == [
        "ok the kubelets of 2 nodes give pods 120 s or more in a shutdown"
    ]
    cluster.kubelets["n1"] = NONE
    (finding,) = await cluster.findings(check_shutdowns)
    assert finding == (
        "warn the kubelets of 1 of 2 nodes give pods no time when their node is shut down, so that pods end unsaved: n1"
    )


@pytest.mark.parametrize("configuration", [None, {"shutdownGracePeriod": "soon"}], ids=("unreachable", "other"))
async def test_kubelet_that_cannot_be_read_is_unknown(configuration: Object | None) -> None:
    cluster = cluster_of("", "")
    if configuration is None:
        del cluster.kubelets["n0"]
    else:
        cluster.kubelets["n0"] = configuration
    assert await cluster.findings(check_shutdowns) == [
        "warn unknown: the configuration of the kubelets of n0 cannot be read"
    ]


def test_cloud_of_each_provider_is_recognized() -> None:
    assert set(PROVIDERS_BY_SCHEME.values()) == set(InterruptionSource) - {InterruptionSource.KUBELET}


async def test_missing_right_is_named() -> None:
    cluster = cluster_of("").deny(NODES, "n0")
    with pytest.raises(MissingPermissionError, match="needs get on nodes/proxy"):
        await cluster.findings(check_shutdowns)


async def test_so_many_kubelets_are_called_at_most() -> None:
    cluster = cluster_of(*("",) * (MOST_KUBELETS + 3))
    (finding,) = await cluster.findings(check_shutdowns)
    assert f"of {MOST_KUBELETS} nodes" in finding


async def test_without_the_adapter_neither_matters() -> None:
    cluster = cluster_of("aws:///i", adapters=("kueue",))
    cluster.kubelets["n0"] = NONE
    (finding,) = await cluster.findings(check_notices)
    assert finding == "ok not checked: without the adapter kubernetes no pod is saved from them"
    assert await cluster.findings(check_shutdowns) == []
