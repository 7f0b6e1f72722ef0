"""A bucket with a real STS, and who gives an agent credentials of it; only the API server is simulated."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from cedana_sched.cluster.coordinator.credentials.endpoint import PATH, CredentialEndpoint
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.component.http_server import serve_http
from cedana_sched.store.credential_client import CredentialRequest
from cedana_sched.store.credential_renewal import SessionCredentials
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.sts import Sessions, SessionSource
from cedana_sched_webhooks.certificates import plan_next_step
from cedana_sched_webhooks.tls import ServingCertificate
from tests.servers.seaweedfs import ROLE, Server
from tests.unit.cluster.coordinator.credentials.granting_cluster import Cluster

PREFIX = "lab"


class ScopedSite:
    """A bucket, a cluster, and an agent's configuration; the coordinator comes and goes.

    Args:
        server: that has the bucket.
        folder: for the agent's token, and who signs the coordinator's certificate.
        cluster: that the coordinator asks.
        keys: that seal what the agent saves; None: nothing is sealed.
    """

    def __init__(self, server: Server, folder: Path, cluster: Cluster, keys: Path | None = None) -> None:
        self.cluster = cluster
        bucket = f"test-{uuid.uuid4().hex[:12]}"
        server.owner().make_bucket(bucket)
        self.location = server.location(bucket, PREFIX)
        """With the keys of it all."""
        self._sessions = Sessions(self.location, SessionSource(role_arn=ROLE))
        made = plan_next_step(None, ("localhost",), trusted=False, now=dt.datetime.now(tz=dt.UTC)).issued
        assert made is not None
        self._certificate = made
        self._folder = folder
        (folder / "token").write_text("good")
        (folder / "ca.crt").write_bytes(made.authorities)
        self._place = {"bucket": bucket, "prefix": PREFIX, "endpoint": server.endpoint, "allowHttp": True}
        self._keys = keys
        self._port = 0

    @contextlib.asynccontextmanager
    async def coordinator(self) -> AsyncIterator[None]:
        """One replica, which has nothing of those before it."""
        metrics = CredentialMetrics(CollectorRegistry())
        certificate = ServingCertificate(metrics)
        certificate.load(self._certificate.certificate, self._certificate.key)

        async def begin(wanted: CredentialRequest, node: str) -> SessionCredentials:
            return await asyncio.to_thread(
                self._sessions.create_session, wanted.namespace, node, collecting=wanted.collecting
            )

        application = CredentialEndpoint(self.cluster.evidence().authorize_node, begin, metrics)
        async with serve_http(application.web, self._port, certificate.context, host="127.0.0.1") as port:
            self._port = port
            yield

    def storage(self) -> StorageConfig:
        """As an agent has it."""
        service = {"url": f"https://localhost:{self._port}{PATH}", "tokenFile": f"{self._folder}/token"}
        service["authorities"] = f"{self._folder}/ca.crt"
        sealing = {"keyFile": str(self._keys)} if self._keys is not None else {}
        return StorageConfig.load({"s3": {**self._place, "credentials": service}, **sealing})

    def store(self, *, collecting: bool = False) -> SnapshotStore:
        """As a new process of the agent opens it."""
        return SnapshotStore.open(self.storage(), collecting=collecting)
