"""The certificate of the credential service: created, renewed and shared like the webhooks' own.

Keys are in a Secret that only coordinators read. Agents trust the CA in a ConfigMap of the same name: a node that
mounts a Secret can read all of it.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.component.secret_reconciler import reconcile_forever
from cedana_sched.kube.builtin_kinds import Metadata, Secret
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.resources import CONFIG_MAPS, SECRETS, Resource
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched_webhooks.certificate_secret import decode_secret, encode_secret_data
from cedana_sched_webhooks.certificates import UnreadableCertificatesError, expiry_of_certificate, plan_next_step
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)

AUTHORITIES: Final = "ca.crt"


class AuthorityConfigMap(msgspec.Struct, frozen=True):
    """The ConfigMap with the trusted CA."""

    metadata: Metadata
    data: dict[str, str] = {}


class CertificateKeeper:
    """Reconciles the Secret and the ConfigMap. Run `run` as a task.

    Args:
        api: may watch and patch the Secret and the ConfigMap; the chart created both, empty.
        name: of both.
        namespace: of both.
        service_names: DNS names by which agents call us.
        serving: gets each new certificate.
        metrics: counts problems.
        now: the time of day.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        namespace: str,
        service_names: tuple[str, ...],
        serving: ServingCertificate,
        metrics: CredentialMetrics,
        now: Callable[[], dt.datetime],
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._service_names = service_names
        self._serving = serving
        self._metrics = metrics
        self._now = now
        self._changed = asyncio.Event()
        fields = f"metadata.name={name}"
        self._secrets = Informer(Watch(api, SECRETS, Secret, namespace=namespace, fields=fields))
        self._published = Informer(Watch(api, CONFIG_MAPS, AuthorityConfigMap, namespace=namespace, fields=fields))

    async def run(self) -> None:
        """Reconcile forever."""
        self._secrets.subscribe(lambda _before, _now: self._changed.set())
        self._published.subscribe(lambda _before, _now: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._secrets.run(), name="mirror of the Secret of credentials")
            tasks.create_task(self._published.run(), name="mirror of the ConfigMap of credentials")
            tasks.create_task(self._reconcile_forever(), name="certificate of credentials")

    async def _reconcile_forever(self) -> None:
        await self._secrets.synced.wait()
        await self._published.synced.wait()
        problems = self._metrics.certificate_problems
        await reconcile_forever("certificate of credentials", self._reconcile_once, self._changed, problems, self._now)

    async def _reconcile_once(self) -> dt.datetime:
        """Reconcile once; return when to run again if nothing changes before."""
        secret = self._secrets.get(self._name, self._namespace)
        published = self._published.get(self._name, self._namespace)
        if secret is None or published is None:
            kind = "Secret" if secret is None else "ConfigMap"
            sentence = f"there is no {kind} {self._name} in namespace {self._namespace}"
            raise UnreadableCertificatesError(sentence, remedy="it is a part of the release: install the chart again")
        issued = decode_secret(secret)
        is_trusted = False
        if issued is not None:
            if self._serving.load(issued.certificate, issued.key):
                log.info("certificate of credentials", secret=self._name, version=secret.metadata.resource_version)
            expiry_of_certificate(issued.authorities)  # raises if it is no certificate, which no agent may trust
            is_trusted = await self._publish(published, issued.authorities.decode())
        step = plan_next_step(issued, self._service_names, trusted=is_trusted, now=self._now())
        if step.issued is not None:
            await self._write(SECRETS, secret.metadata, encode_secret_data(step.issued))
        return step.due

    async def _publish(self, published: AuthorityConfigMap, authorities: str) -> bool:
        """Publish the CA; return whether it was already published."""
        if published.data.get(AUTHORITIES) == authorities:
            return True
        await self._write(CONFIG_MAPS, published.metadata, {AUTHORITIES: authorities})
        return False

    async def _write(self, resource: Resource, seen: Metadata, data: Object) -> None:
        """Write the object; the watch delivers the result: ours, or that of a replica that was faster."""
        patch = {"metadata": {"resourceVersion": seen.resource_version}, "data": data}
        try:
            await self._api.patch(resource, self._name, self._namespace, patch)
            log.info("certificate of credentials written", kind=resource.kind, name=self._name)
        except ConflictError:
            log.info("certificate of credentials written by another replica", kind=resource.kind, name=self._name)
