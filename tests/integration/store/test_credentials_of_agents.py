"""An agent's store, a coordinator and a real STS: from a token of the agent's pod to a snapshot of the namespace.

Only the API server is simulated: it knows tokens, pods and orders.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.kube.resources import CHECKPOINTS, PODS
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store.credential_renewal import CredentialsRefusedError
from cedana_sched.store.reader import read_patiently
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.integration.store.scoped_site import ScopedSite
from tests.servers.seaweedfs import Server, sts_server
from tests.servers.snapshots import take
from tests.unit.cluster.coordinator.credentials.granting_cluster import MINE, OLDER, Cluster, ordered, protected

__all__ = ["sts_server"]
pytestmark = [pytest.mark.s3, pytest.mark.exhaustive]  # the server takes minutes to build

MEMORY = bytes(range(256)) * 16 * 40
MD = Identity(MINE, "md")


@pytest.fixture
def site(sts_server: Server, tmp_path: Path) -> ScopedSite:  # a fixture of that name
    return ScopedSite(sts_server, tmp_path, Cluster())


async def saved(store: SnapshotStore) -> SnapshotRef:
    return (await asyncio.to_thread(take, store, MD, {"pages-1.img": MEMORY})).ref


async def test_a_node_saves_and_continues_what_runs_on_it_and_nothing_else(site: ScopedSite) -> None:
    async with site.coordinator():
        with pytest.raises(CredentialsRefusedError, match="no protected pod of namespace research is on node node-1"):
            await saved(site.store())
        site.cluster.put(PODS, protected())
        store = site.store()
        ref = await saved(store)
        assert (await asyncio.to_thread(store.verify, ref)).ok
        foreign = Identity(f"finance.{OLDER}", "md")
        with pytest.raises(CredentialsRefusedError, match="finance"):
            await asyncio.to_thread(store.latest_snapshot_of, foreign)


async def test_an_order_is_carried_out_after_the_pod_has_gone(site: ScopedSite) -> None:
    async with site.coordinator():
        site.cluster.put(PODS, protected())
        ref = await saved(site.store())
        site.cluster.put(PODS)
        with pytest.raises(CredentialsRefusedError):
            await asyncio.to_thread(site.store().remove, ref)
        site.cluster.put(CHECKPOINTS, ordered(given=2, answered=1))
        await asyncio.to_thread(site.store().remove, ref)
        site.cluster.put(CHECKPOINTS, ordered(given=2, answered=2))
        with pytest.raises(CredentialsRefusedError):
            await asyncio.to_thread(site.store().latest_snapshot_of, MD)


async def test_a_coordinator_that_is_away_is_a_store_that_is_away_and_another_one_goes_on(site: ScopedSite) -> None:
    site.cluster.put(PODS, protected())
    async with site.coordinator():
        store = site.store()
        ref = await saved(store)
    assert (await asyncio.to_thread(store.verify, ref)).ok, "credentials that are there are used"
    late = site.store()
    with pytest.raises(StoreUnavailableError, match="see whether the coordinator runs"):
        await asyncio.to_thread(late.latest_snapshot_of, MD)
    async with site.coordinator():
        summary = await asyncio.to_thread(read_patiently, lambda: late.latest_snapshot_of(MD))
    assert summary is not None
    assert summary.ref == ref
