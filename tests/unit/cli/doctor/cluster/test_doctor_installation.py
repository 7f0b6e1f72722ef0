"""Whether the doctor finds the product in a cluster, also with few rights."""

from __future__ import annotations

import pytest

from cedana_sched.cli.cluster_reader import MOST_NAMES, MissingPermissionError, summarize_names
from cedana_sched.cli.doctor.cluster.installation import check_releases, find_releases
from cedana_sched.kube.resources import DEPLOYMENTS

from .cluster_to_look_at import NAMESPACE, Cluster, deployment, said


async def found_in(cluster: Cluster) -> list[str]:
    return said(check_releases(await find_releases(cluster.reads)))


async def test_a_release_that_runs_is_found_where_it_is() -> None:
    assert await found_in(Cluster()) == ["ok version 1.2 runs in namespace cedana-system: coordinator, webhooks"]
    assert (await Cluster().installed()).name == "cedana-sched"


async def test_no_release_is_a_failure() -> None:
    cluster = Cluster()
    cluster.there[DEPLOYMENTS].clear()
    (finding,) = await found_in(cluster)
    assert finding.startswith("fail no coordinator")


async def test_components_that_do_not_run_are_named() -> None:
    cluster = Cluster()
    cluster.there[DEPLOYMENTS][:] = [deployment("coordinator", available=0), deployment("webhooks", available=1)]
    assert await found_in(cluster) == [
        "fail nothing of cedana-sched-coordinator is available",
        "warn of cedana-sched-webhooks fewer replicas are available than desired",
    ]


async def test_what_was_scaled_down_to_nothing_is_named() -> None:
    cluster = Cluster()
    cluster.there[DEPLOYMENTS][:] = [deployment("coordinator", replicas=0, available=0)]
    assert await found_in(cluster) == ["fail nothing of cedana-sched-coordinator is available"]


async def test_two_releases_are_one_too_many() -> None:
    assert "fail 2 releases share the records of one cluster, in cedana-system, elsewhere" in await found_in(
        Cluster().put(DEPLOYMENTS, deployment("coordinator", "elsewhere"))
    )


async def test_rights_in_the_stock_namespace_are_enough() -> None:
    assert await found_in(Cluster().deny(DEPLOYMENTS, None)) == await found_in(Cluster())


async def test_without_rights_nothing_is_taken_for_absent() -> None:
    with pytest.raises(MissingPermissionError) as raised:
        await find_releases(Cluster().deny(DEPLOYMENTS).reads)
    assert raised.value.message == f"needs list on deployments.apps in namespace {NAMESPACE}"


def test_names_are_bounded() -> None:
    assert summarize_names(["b", "a", "b"]) == "a, b"
    assert summarize_names(f"{number:02}" for number in range(MOST_NAMES + 3)).endswith("09 and 3 more")
