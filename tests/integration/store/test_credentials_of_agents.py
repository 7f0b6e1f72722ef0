"""An agent's store, a coordinator and a real STS: from a token of the agent's pod to a snapshot of the namespace.

Only the API server is simulated: it knows tokens, pods and orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from cedana_sched.cluster.coordinator.credentials.application import PATH, CredentialApplication
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.kube.resources import CHECKPOINTS, PODS
from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.service.listening import listening
from cedana_sched.store.credential_client import CredentialRequest
from cedana_sched.store.location import StorageConfig
from cedana_sched.store.retrying import read_patiently
from cedana_sched.store.session_credentials import CredentialsRefusedError, SessionCredentials
from cedana_sched.store.snapshots import SnapshotStore
from cedana_sched.store.sts import Sessions, SessionSource
from cedana_sched_webhooks.certificates import plan
from cedana_sched_webhooks.tls import ServingCertificate
from tests.servers.seaweedfs import ROLE, Server, sts_server
from tests.servers.snapshots import take
from tests.unit.cluster_coordinator.granting_cluster import MINE, OLDER, Cluster, ordered, protected

__all__ = ["sts_server"]
pytestmark = [pytest.mark.s3, pytest.mark.exhaustive]  # the server takes minutes to build

PREFIX = "lab"
MEMORY = bytes(range(256)) * 16 * 40
MD = Identity(MINE, "md")


class Site:
    """A bucket, a cluster, and an agent's configuration; the coordinator comes and goes."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.cluster = Cluster()
        bucket = f"test-{uuid.uuid4().hex[:12]}"
        server.owner().make_bucket(bucket)
        self._sessions = Sessions(server.location(bucket, PREFIX), SessionSource(role_arn=ROLE))
        made = plan(None, ("localhost",), trusted=False, now=dt.datetime.now(tz=dt.UTC)).issued
        assert made is not None
        self._certificate = made
        self._folder = folder
        (folder / "token").write_text("good")
        (folder / "ca.crt").write_bytes(made.authorities)
        self._place = {"bucket": bucket, "prefix": PREFIX, "endpoint": server.endpoint, "allowHttp": True}
        self._port = 0

    @contextlib.asynccontextmanager
    async def coordinator(self) -> AsyncIterator[None]:
        """One replica, which has nothing of those before it."""
        metrics = CredentialMetrics(CollectorRegistry())
        certificate = ServingCertificate(metrics)
        certificate.load(self._certificate.certificate, self._certificate.key)

        async def begin(wanted: CredentialRequest, node: str) -> SessionCredentials:
            return await asyncio.to_thread(self._sessions.begin, wanted.namespace, node, collecting=wanted.collecting)

        application = CredentialApplication(self.cluster.evidence().node_with_business, begin, metrics)
        async with listening(application.web, self._port, certificate.context, host="127.0.0.1") as port:
            self._port = port
            yield

    def store(self) -> SnapshotStore:
        """As a new process of the agent opens it."""
        service = {"url": f"https://localhost:{self._port}{PATH}", "tokenFile": f"{self._folder}/token"}
        service["authorities"] = f"{self._folder}/ca.crt"
        return SnapshotStore.open(StorageConfig.load({"s3": {**self._place, "credentials": service}}))


@pytest.fixture
def site(sts_server: Server, tmp_path: Path) -> Site:  # a fixture of that name
    return Site(sts_server, tmp_path)


async def saved(store: SnapshotStore) -> SnapshotRef:
    return (await asyncio.to_thread(take, store, MD, {"pages-1.img": MEMORY})).ref


async def test_a_node_saves_and_continues_what_runs_on_it_and_nothing_else(site: Site) -> None:
    async with site.coordinator():
        with pytest.raises(CredentialsRefusedError, match="no protected pod of namespace research is on node node-1"):
            await saved(site.store())
        site.cluster.put(PODS, protected())
        store = site.store()
        ref = await saved(store)
        assert (await asyncio.to_thread(store.verify, ref)).ok
        foreign = Identity(f"finance.{OLDER}", "md")
        with pytest.raises(CredentialsRefusedError, match="finance"):
            await asyncio.to_thread(store.latest, foreign)


async def test_an_order_is_carried_out_after_the_pod_has_gone(site: Site) -> None:
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
            await asyncio.to_thread(site.store().latest, MD)


async def test_a_coordinator_that_is_away_is_a_store_that_is_away_and_another_one_goes_on(site: Site) -> None:
    site.cluster.put(PODS, protected())
    async with site.coordinator():
        store = site.store()
        ref = await saved(store)
    assert (await asyncio.to_thread(store.verify, ref)).ok, "credentials that are there are used"
    late = site.store()
    with pytest.raises(StoreUnavailableError, match="see whether the coordinator runs"):
        await asyncio.to_thread(late.latest, MD)
    async with site.coordinator():
        summary = await asyncio.to_thread(read_patiently, lambda: late.latest(MD))
    assert summary is not None
    assert summary.ref == ref
