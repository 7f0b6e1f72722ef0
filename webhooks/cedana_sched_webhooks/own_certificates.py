"""Keeps certificates of our own CA: in one Secret that all replicas share, and in the webhook configurations.

The Secret also contains the secret that authenticates the API server (see `callers`). The first replica creates the
Secret; the others find that it exists and read it. Every replica watches the Secret and the configurations, so each
change of either is seen at once, and emptied values are filled again.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from cedana_sched.component.caller_secret import CALLERS, caller_secret_in, encode_base64
from cedana_sched.component.callers import SETTLE_SECONDS, Callers, new_secret, secret_segment_of
from cedana_sched.component.secret_reconciler import reconcile_forever
from cedana_sched.kube.builtin_kinds import Secret, WebhookConfiguration
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import AlreadyExistsError, ConflictError
from cedana_sched.kube.resources import MUTATING_WEBHOOKS, SECRETS, VALIDATING_WEBHOOKS, Resource
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched_webhooks.certificate_secret import decode_secret, encode_secret_data
from cedana_sched_webhooks.certificates import IssuedCertificates, plan_next_step
from cedana_sched_webhooks.configuration import OwnCertificates
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.registrations import Registration
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)

LONGEST_SETTLING: Final = dt.timedelta(seconds=SETTLE_SECONDS + 1)


class _TrustingConfiguration(msgspec.Struct, frozen=True):
    """One webhook configuration whose `caBundle` contains our CA."""

    resource: Resource
    name: str
    informer: Informer[WebhookConfiguration]


class OwnCertificateKeeper:
    """Reconciles the Secret and the configurations. Run `run` as a task.

    Args:
        api: with the permissions that webhooks/README.md lists.
        namespace: of the Secret.
        service_names: DNS names by which the API server calls us.
        serving: gets each new certificate.
        callers: get each new secret.
        hooks: paths behind the secret segment, by webhook name.
        now: the time of day.
    """

    def __init__(
        self,
        api: Api,
        names: OwnCertificates,
        *,
        namespace: str,
        service_names: tuple[str, ...],
        serving: ServingCertificate,
        callers: Callers,
        hooks: Mapping[str, str],
        metrics: Metrics,
        now: Callable[[], dt.datetime],
    ) -> None:
        self._api = api
        self._name = names.secret
        self._namespace = namespace
        self._service_names = service_names
        self._serving = serving
        self._callers = callers
        self._hooks = hooks
        self._metrics = metrics
        self._now = now
        self._changed = asyncio.Event()
        watch = Watch(api, SECRETS, Secret, namespace=namespace, fields=f"metadata.name={self._name}")
        self._secrets = Informer(watch)
        self._trusting = tuple(
            _TrustingConfiguration(
                resource, name, Informer(Watch(api, resource, WebhookConfiguration, fields=f"metadata.name={name}"))
            )
            for resource, name in (
                (MUTATING_WEBHOOKS, names.mutating_configuration),
                (VALIDATING_WEBHOOKS, names.validating_configuration),
            )
            if name
        )

    async def run(self) -> None:
        """Reconcile forever."""
        self._secrets.subscribe(lambda _before, _now: self._changed.set())
        for one in self._trusting:
            one.informer.subscribe(lambda _before, _now: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._secrets.run(), name="mirror of the Secret")
            for one in self._trusting:
                tasks.create_task(one.informer.run(), name=f"mirror of {one.resource.kind}")
            tasks.create_task(self._reconcile_continuously(), name="certificates")

    async def _reconcile_continuously(self) -> None:
        for synced in (self._secrets.synced, *(one.informer.synced for one in self._trusting)):
            await synced.wait()
        await reconcile_forever(
            "certificates", self._reconcile_once, self._changed, self._metrics.certificate_problems, self._now
        )

    async def _reconcile_once(self) -> dt.datetime:
        """Reconcile once; return when to run again if nothing changes before."""
        secret = self._secrets.get(self._name, self._namespace)
        known = caller_secret_in(secret.data if secret is not None else {})
        if known is not None:
            self._callers.set_secret(known)
        issued = decode_secret(secret) if secret is not None else None
        if issued is not None and self._serving.load(issued.certificate, issued.key):
            log.info("certificate", secret=self._name, version=secret.metadata.resource_version if secret else "")
        trusted = (
            issued is not None and known is not None and await self._patch_configurations(issued.authorities, known)
        )
        step = plan_next_step(issued, self._service_names, trusted=trusted, now=self._now())
        if (made := step.issued or issued) is not None and (step.issued is not None or known is None):
            await self._write(secret, made, known or new_secret())
        return step.due if self._callers.has_reached_all_replicas else self._now() + LONGEST_SETTLING

    async def _write(self, secret: Secret | None, issued: IssuedCertificates, known: str) -> None:
        """Write the Secret; the watch delivers the result: ours, or that of a replica that was faster."""
        data = encode_secret_data(issued)
        data[CALLERS] = encode_base64(known)
        try:
            if secret is None:
                metadata: Object = {"name": self._name, "namespace": self._namespace}
                metadata["labels"] = {"app.kubernetes.io/part-of": "cedana-sched"}
                await self._api.create(SECRETS, {"metadata": metadata, "type": "Opaque", "data": data}, into=Secret)
            else:
                version = {"resourceVersion": secret.metadata.resource_version}
                await self._api.patch(SECRETS, self._name, self._namespace, {"metadata": version, "data": data})
            log.info("certificates made", secret=self._name)
        except (AlreadyExistsError, ConflictError):
            log.info("certificates made by another replica", secret=self._name)

    async def _patch_configurations(self, authorities: bytes, known: str) -> bool:
        """Patch the configurations where they differ; return whether none did."""
        hooks = self._hooks if self._callers.has_reached_all_replicas else {}
        paths = {name: f"/{secret_segment_of(known, path)}{path}" for name, path in hooks.items()}
        registration = Registration(base64.b64encode(authorities).decode(), paths)
        trusted = True
        for one in self._trusting:
            configuration = one.informer.get(one.name)
            if configuration is None:  # not installed, or being removed
                continue
            if patch := registration.patch(configuration):
                await self._api.patch(one.resource, one.name, None, patch)
                log.info("webhook configuration written", kind=one.resource.kind, name=one.name)
                trusted = False
        return trusted
