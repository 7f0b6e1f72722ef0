"""Garbage of a namespace that has no pod any more: a coordinator's turns, an agent's collections, and a real STS."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from cedana_sched.cluster.coordinator.garbage_collection_scheduler import GarbageCollectionScheduler
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.resources import CONFIG_MAPS, PODS, Resource
from cedana_sched.model.errors import StoreDeniedError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.store import garbage, layout
from cedana_sched.store.credential_renewal import CredentialsRefusedError
from cedana_sched.store.garbage import GarbageReport, collect_garbage
from cedana_sched.store.s3 import S3Backend
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from tests.integration.store.scoped_site import ScopedSite
from tests.servers.sealing import new_keys
from tests.servers.seaweedfs import Server, sts_server
from tests.servers.snapshots import take
from tests.unit.cluster.coordinator.credentials.granting_cluster import MINE, NODE, OURS, TURNS, Cluster, protected
from tests.unit.cluster.coordinator.filled_mirrors import filled
from tests.unit.cluster.coordinator.test_garbage_collection_scheduler import node

__all__ = ["sts_server"]
pytestmark = [pytest.mark.s3, pytest.mark.exhaustive]  # the server takes minutes to build

MEMORY = bytes(range(256)) * 16 * 40
MD = Identity(MINE, "md")


class WrittenCluster(Cluster):
    """One in which the coordinator writes the turns."""

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Object) -> None:
        assert (resource, name, namespace) == (CONFIG_MAPS, TURNS, OURS)
        self.turns = {"metadata": {"name": TURNS}, **patch}


class Site(ScopedSite):
    """One in which pods come and go."""

    def __init__(self, server: Server, folder: Path) -> None:
        super().__init__(server, folder, WrittenCluster(), new_keys(folder))

    def leader(self) -> GarbageCollectionScheduler:
        bucket = S3Backend(self.location)
        informers = filled(node(NODE)), filled(), filled()
        return GarbageCollectionScheduler(
            cast("Api", self.cluster), lambda: bucket, TURNS, OURS, *informers, clock=lambda: 0.0
        )

    def objects(self, folder: str = "") -> set[str]:
        place = "/".join(part for part in (layout.namespace_folder(MINE), folder) if part)
        return {entry.key for entry in S3Backend(self.location).list(place)}

    async def saved(self) -> tuple[SnapshotRef, SnapshotRef]:
        """Two snapshots, by a node that has a pod; then it has gone, and the older one is removed."""
        self.cluster.put(PODS, protected())
        store = self.store()
        first, second = [
            (await asyncio.to_thread(take, store, MD, {"pages-1.img": data})).ref for data in (MEMORY, MEMORY[::-1])
        ]
        await asyncio.to_thread(store.remove, first)
        self.cluster.put(PODS)
        return first, second


@pytest.fixture
def site(sts_server: Server, tmp_path: Path) -> Site:  # a fixture of that name
    return Site(sts_server, tmp_path)


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grace period is a quarter of an hour."""

    def now(*arguments: Any, **options: Any) -> GarbageReport:
        return collect_garbage(*arguments, **options, grace_seconds=0)

    monkeypatch.setattr("cedana_sched.store.snapshot_store.collect_garbage", now)
    assert garbage.GRACE_SECONDS == 900


async def test_what_no_pod_is_left_of_is_collected_and_what_is_needed_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.coordinator():
        _, second = await site.saved()
        before = site.objects("packs")
        with pytest.raises(CredentialsRefusedError):
            await asyncio.to_thread(site.store().collect_in_turn, MINE, 0)
        with pytest.raises(CredentialsRefusedError, match="not the turn of node"):
            await asyncio.to_thread(site.store(collecting=True).collect_in_turn, MINE, 0)
        await site.leader().run_round()
        at_once(monkeypatch)
        reports = []
        for _ in range(2):
            turn = await asyncio.to_thread(site.store(collecting=True).collect_in_turn, MINE, 0)
            reports.append(cast("GarbageReport", turn.report))
        assert [report.condemned_packs for report in reports] == [1, 0]
        assert [report.removed_packs for report in reports] == [0, 1]
        assert len(site.objects("packs")) == len(before) - 1
        site.cluster.put(PODS, protected())
        assert (await asyncio.to_thread(site.store().verify, second)).ok


async def test_a_namespace_that_was_deleted_is_collected_until_nothing_of_memory_is_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site.coordinator():
        _, second = await site.saved()
        await asyncio.to_thread(SnapshotStore(S3Backend(site.location)).remove, second)
        site.cluster.namespaces.clear()
        await site.leader().run_round()
        at_once(monkeypatch)
        for _ in range(2):
            await asyncio.to_thread(site.store(collecting=True).collect_in_turn, MINE, 0)
    assert not site.objects("packs")
    assert {key.split("/")[2] for key in site.objects()} <= {"snapshots", "keys"}


async def test_whose_turn_it_is_reads_no_memory_and_writes_no_snapshot(site: Site) -> None:
    async with site.coordinator():
        _, second = await site.saved()
        await site.leader().run_round()
        backend = open_backend(site.storage(), collecting=True)
        manifest = next(key for key in site.objects("snapshots") if key.endswith(".manifest"))
        assert await asyncio.to_thread(backend.get, manifest, at_most=1 << 20), "which packs are needed, it must read"
        pack, data_key = min(site.objects("packs")), min(site.objects("keys"))
        for attack in (
            lambda: backend.get(pack, at_most=100),
            lambda: backend.put(pack, b"forged"),
            lambda: backend.put(manifest, b"forged"),
            lambda: backend.put(layout.removed_key(second), b""),
            lambda: backend.put(data_key, b"forged"),
            lambda: backend.delete([data_key]),
        ):
            with pytest.raises(StoreDeniedError):
                await asyncio.to_thread(attack)
        for foreign in ("finance.7c9e6679-7425-40de-944b-e07fc1f90ae7", "research"):
            with pytest.raises(CredentialsRefusedError):
                await asyncio.to_thread(backend.get, layout.collector_key(foreign), at_most=100)
        assert site.objects("keys") == {data_key}
        site.cluster.put(PODS, protected())
        assert (await asyncio.to_thread(site.store().verify, second)).ok
