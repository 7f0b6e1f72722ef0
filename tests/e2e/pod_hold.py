"""Our webhook's hold of pods, alone, in the tests' process; what the coordinator decides, it is told here."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cedana_sched.adapter.conformance.stage import running_beside
from cedana_sched.component.http_server import serve_http
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Api
from cedana_sched.kube.eviction_marker import EvictionMarker
from cedana_sched.kube.own_kinds.cached_checkpoint import Checkpoint, CheckpointSpec
from cedana_sched.kube.own_kinds.cached_hold import HoldSpec, HoldStatus, PreemptionHold, VictimStatus
from cedana_sched.kube.own_kinds.parts import IdentitySpec, PodRef
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import STALE_SECONDS
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.preemption import Release, Signal
from cedana_sched.model.records import HoldStep
from cedana_sched_webhooks.admission import Answer, Refusal, Request
from cedana_sched_webhooks.caches import AdmissionCaches, CacheInformers
from cedana_sched_webhooks.configuration import Configuration, RestoreContainer
from cedana_sched_webhooks.holds.pod_eviction_hold import PodEvictionHold
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.server import admission_application
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Api as ClusterApi
from tests.cluster.api.client import Object
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane.certificates import Authority
from tests.cluster.fixtures.namespace import Namespace, container, pod

_ASKED = "the webhook of the test was asked"
"""What dry runs are told."""
_PATH = "/mutate/pods/status"
_HOLD_SECONDS = 600


class PodHold:
    """What the webhook answers a scheduler. `absent`: it does not, and the API server goes on without it."""

    def __init__(self, knowledge: AdmissionCaches, marker: EvictionMarker, scheduler: str) -> None:
        self.absent = False
        self._was_asked = asyncio.Event()
        self._knowledge = knowledge
        self._holds: dict[str, PreemptionHold] = {}
        configuration = Configuration(
            namespace="-", scheduler_users=frozenset({scheduler}), restore=RestoreContainer(image="-")
        )
        self._answers = PodEvictionHold(knowledge, configuration, marker, now=SERVER_TIME.now)

    @classmethod
    @asynccontextmanager
    async def in_force(cls, cluster: Cluster, api: ClusterApi, scheduler: str, folder: Path) -> AsyncIterator[PodHold]:
        """One that the API server asks about each eviction of a protected pod by this user."""
        async with cls._serving(cluster, scheduler, folder) as (hold, configuration):
            await api.apply(configuration)
            try:
                await _is_asked(cluster, api, scheduler)
                yield hold
            finally:
                await api.delete(configuration["apiVersion"], configuration["kind"], configuration["metadata"]["name"])

    @classmethod
    @asynccontextmanager
    async def _serving(cls, cluster: Cluster, scheduler: str, folder: Path) -> AsyncIterator[tuple[PodHold, Object]]:
        """One that answers, and what makes the API server ask it."""
        authority, address = Authority(folder, "webhook-ca"), cluster.place.link[1]
        served = authority.issue("webhook", user="webhook", addresses=[address])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(served.certificate, served.key)
        async with Api.open(str(cluster.kubeconfig)) as api:
            marker = EvictionMarker(api, _now)
            hold = cls(CacheInformers(api).caches, marker, scheduler)
            application = admission_application({_PATH: hold.answer}, asyncio.Event(), Metrics())
            async with running_beside(marker.run()), serve_http(application, 0, context, host=str(address)) as port:
                trusted = base64.b64encode(authority.pair.certificate.read_bytes()).decode()
                yield hold, _configuration(f"https://{address}:{port}{_PATH}", trusted, scheduler)

    async def answer(self, request: Request) -> Answer:
        if request.dry_run:
            return Answer("asked", refusal=Refusal(403, "Forbidden", _ASKED))
        self._was_asked.set()
        return Answer("absent") if self.absent else self._answers.answer(request)

    async def wait_until_unasked(self) -> None:
        """Wait until the scheduler has given up: a client of the API server tries again ten times, once a second."""
        with suppress(TimeoutError):
            while True:
                self._was_asked.clear()
                async with asyncio.timeout(STALE_SECONDS):
                    await self._was_asked.wait()

    def forget(self) -> None:
        """Another test begins, and holds are of the last one."""
        for hold in self._holds.values():
            self._knowledge.on_hold_change(hold, None)
        self._holds.clear()

    def hold(self, signal: Signal) -> None:
        """A PreemptionHold and its Checkpoints."""
        if signal.uid in self._holds:
            return
        now = _now()
        for victim in signal.victims:
            identity = IdentitySpec(victim.identity.id, victim.identity.index)
            spec = CheckpointSpec(
                identity, PodRef(victim.workload.uid, node_name=victim.workload.node or ""), signal.uid
            )
            name = f"{hold_name(signal.uid)}-{victim.identity.index}"
            metadata = Metadata(name=name, namespace=victim.workload.namespace)
            self._knowledge.on_checkpoint_change(None, Checkpoint(metadata, spec))
        deadline = (now + timedelta(seconds=_HOLD_SECONDS)).isoformat()
        spec_of_hold = HoldSpec(signal.reason, uid=signal.uid, creation_time=now.isoformat())
        metadata = Metadata(name=hold_name(signal.uid), namespace=signal.victims[0].workload.namespace)
        self._note(PreemptionHold(metadata, spec_of_hold, HoldStatus(deadline=deadline)))

    def release(self, release: Release) -> None:
        """The coordinator has decided."""
        if (hold := self._holds.get(release.signal_uid)) is None or hold.status.step is not HoldStep.HOLDING:
            return
        victims = tuple(VictimStatus(uid, verdict) for uid, verdict in release.verdicts.items())
        status = HoldStatus(HoldStep.RELEASED, hold.status.deadline, _now().isoformat(), victims)
        self._note(PreemptionHold(hold.metadata, hold.spec, status))

    def _note(self, hold: PreemptionHold) -> None:
        self._knowledge.on_hold_change(self._holds.get(hold.spec.uid), hold)
        self._holds[hold.spec.uid] = hold


def _configuration(url: str, trusted: str, scheduler: str) -> Object:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"], "operations": ["UPDATE"]}
    webhook = {
        "name": "statuses.webhook.test",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "NoneOnDryRun",
        "failurePolicy": "Fail",
        "clientConfig": {"url": url, "caBundle": trusted},
        "objectSelector": {"matchLabels": {names.PROTECTED: "true"}},
        "matchConditions": [{"name": "by-scheduler", "expression": f"request.userInfo.username == '{scheduler}'"}],
        "rules": [rule],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "conformance"},
        "webhooks": [webhook],
    }


async def _is_asked(cluster: Cluster, api: ClusterApi, scheduler: str) -> None:
    async with Namespace.created(cluster, api, "conformance-hold") as namespace:
        never = pod("probe", container("none"), labels={names.PROTECTED: "true"}, schedulerName="nobody")
        [probe] = await namespace.apply(never)
        status = {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}
        evicted = json.dumps({**probe, "status": {**probe["status"], **status}}).encode()
        evicts = ("replace", "--subresource=status", "--dry-run=server", f"--as={scheduler}", "--filename=-")
        await wait_until_refused(lambda: namespace.kubectl(*evicts, stdin=evicted), _ASKED)


def _now() -> datetime:
    return datetime.now(tz=UTC)
