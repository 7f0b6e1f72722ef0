"""Wiring of the credential service: it runs in every replica of the coordinator, leader or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.cluster.configuration import CredentialsConfiguration
from cedana_sched.cluster.coordinator.credentials.authorizer import CredentialAuthorizer
from cedana_sched.cluster.coordinator.credentials.certificate import CertificateKeeper
from cedana_sched.cluster.coordinator.credentials.endpoint import CredentialEndpoint
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.component.health import Ready
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.client import Api
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.store.credential_client import CredentialRequest
from cedana_sched.store.credential_renewal import SessionCredentials
from cedana_sched.store.sts import Sessions
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serving_credentials(
    api: Api, configuration: CredentialsConfiguration, namespace: str
) -> AsyncIterator[Ready]:
    """Serve agents inside the block; yields the readiness check.

    Args:
        api: with the permissions that the chart grants for this feature.
        configuration: which agents, and which bucket.
        namespace: of our own components.
    """
    metrics = CredentialMetrics()
    certificate = ServingCertificate(metrics)
    service = f"{configuration.name}.{namespace}.svc"
    names = (service, f"{service}.cluster.local")
    keeper = CertificateKeeper(api, configuration.name, namespace, names, certificate, metrics, SERVER_TIME.now)
    sessions = Sessions(configuration.bucket, configuration.sessions)
    threads = StoreThreads(name="sts")
    evidence = CredentialAuthorizer(
        api, namespace, configuration.account, configuration.shared_namespaces, configuration.collection_turns
    )

    async def begin(wanted: CredentialRequest, node: str) -> SessionCredentials:
        return await threads.run(sessions.create_session, wanted.namespace, node, collecting=wanted.collecting)

    application = CredentialEndpoint(evidence.authorize_node, begin, metrics)
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(keeper.run(), name="certificate of credentials")
        try:
            async with serve_http(application.web, configuration.port, certificate.context) as port:
                log.info("credentials are given", port=port, sts=sessions.endpoint)
                yield lambda: None if certificate.is_loaded else "there is no certificate yet"
        finally:
            keeping.cancel()
