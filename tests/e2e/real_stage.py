"""What the conformance suite's stages over real schedulers have in common: pods, and an adapter whose client can fail.

What the pod webhook writes, the stages write.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import aiohttp
from kubernetes_asyncio.client import ApiException

from cedana_sched.adapter.cluster_contract import ClusterAccess, ClusterAdapter
from cedana_sched.adapter.conformance import RunningWorkload, Stage
from cedana_sched.adapter.conformance.stage import running_beside, yield_to_loop
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api as ProductApi
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import WorkloadRef
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient

Mirrored = tuple[str, str, Informer[Any]]
"""API version, kind, and the adapter's mirror of it."""

UNTIL_TOLD = """
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
signal.signal(signal.SIGTERM, lambda *_: os.path.exists("/tmp/stay") or sys.exit(143))
while True:
    signal.pause()
"""
_TELL = "import os, signal; os.kill(1, signal.SIGUSR1)"
_MARKER = "conformance/marker"

BRIEF = (
    "test_a_preemption_is_reported",
    "test_who_is_not_opted_in_is_evicted_as_ever",
    "test_who_comes_back_is_the_same_and_is_preempted_anew",
    "test_a_victim_that_is_committed_is_evicted",
    "test_what_is_pending_is_reported_again_after_a_restart",
    "test_a_gang_waits_and_goes_as_a_whole",
)
"""One of each chapter or so, where a scheduler needs ten seconds for each: the fake ones are tried with all."""


class CutOffApi(ProductApi):
    """A client whose requests can be made to fail; its watches go on."""

    down = False

    async def _request(self, method: str, path: str, **how: Any) -> aiohttp.ClientResponse:
        if self.down:
            raise ApiUnavailableError(f"{method} {path}: cut off by the test", remedy="it is tried again")
        return await super()._request(method, path, **how)


class _Shared:
    """Policies by their names, which are their deadlines; no snapshots; notes in memory."""

    def __init__(self) -> None:
        self._notes: bytes | None = None

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy(deadline_seconds=float(name or 600))

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return self.policy_named(pod.metadata.annotations.get(names.POLICY), pod.metadata.namespace)

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[()]:
        return ()

    async def read(self) -> bytes | None:
        return self._notes

    async def write(self, notes: bytes) -> None:
        self._notes = notes


class RealStage(Stage):
    """A namespace of a real cluster.

    Args:
        namespace: of the test.
        image: with Python.
    """

    adapter_class: ClassVar[type[ClusterAdapter]]
    patience_seconds = 60.0

    def __init__(self, namespace: Namespace, image: str) -> None:
        self.namespace = namespace
        self.image = image
        self.settings: Mapping[str, Any] = {}
        self.numbers = itertools.count(1)
        self._shared = _Shared()
        self._informers: tuple[Mirrored, ...] = ()
        self._api: CutOffApi | None = None

    @abstractmethod
    async def working(self, adapter: Any) -> tuple[Mirrored, ...]:
        """Wait until an adapter works, and name what it mirrors beside pods."""

    @asynccontextmanager
    async def adapter(self) -> AsyncIterator[ClusterAdapter]:
        async with CutOffApi.open(str(self.namespace.cluster.kubeconfig)) as api:
            assert isinstance(api, CutOffApi)
            pods = Informer(Watch(api, PODS, Pod, namespace=self.namespace.name, labels=f"{names.PROTECTED}=true"))
            shared, events = self._shared, EventRecorder(api, "test")
            access = ClusterAccess(api, events, pods, shared, shared, "-", shared, self.settings)
            adapter = self.adapter_class.connect(access)
            self._api = api
            async with running_beside(pods.run(), adapter.run()):
                async with asyncio.timeout(patient(self.patience_seconds)):
                    await pods.synced.wait()
                    informers = await self.working(adapter)
                self._informers = (("v1", "Pod", pods), *informers)
                await yield_to_loop()
                try:
                    yield adapter
                finally:
                    self._informers = ()

    async def is_evicted(self, victim: RunningWorkload) -> bool:
        found = await self.namespace.api.objects("v1", "Pod", self.namespace.name)
        there = [pod for pod in found if pod["metadata"]["uid"] == victim.uid]
        return not there or "deletionTimestamp" in there[0]["metadata"]

    async def wait_until_evicted(self, victim: RunningWorkload) -> None:
        """Another pod may have its name by then."""
        await self.pods_are(
            lambda pods: victim.uid not in {pod["metadata"]["uid"] for pod in pods}, within=2 * self.patience_seconds
        )

    async def wait_until_reported(self) -> None:
        """What is changed last of each kind has reached the adapter."""
        marker = str(next(self.numbers))
        for api_version, kind, informer in self._informers:
            found = await self.namespace.api.objects(api_version, kind, self.namespace.name)
            for name in [one["metadata"]["name"] for one in found]:
                if informer.get(name, self.namespace.name) is not None:
                    version = await self.annotate(api_version, kind, name, {_MARKER: marker})
                    await self._reached(informer, name, version)
        await yield_to_loop()

    async def repeat_current_state(self) -> None:
        await self.wait_until_reported()

    @asynccontextmanager
    async def scheduler_outage(self) -> AsyncIterator[None]:
        assert self._api is not None
        self._api.down = True
        try:
            yield
        finally:
            self._api.down = False

    # -- for the stages

    async def pods_are(self, condition: Any, *, within: float = 60) -> list[Object]:
        """Wait until all pods of the namespace together are so."""
        return await wait_for_all(
            self.namespace.api, "v1", "Pod", condition, namespace=self.namespace.name, within=within
        )

    async def end_well(self, victim: RunningWorkload) -> None:
        """Have its program end by itself. Who tells it may end with it, before kubectl has heard that it is told."""
        with suppress(ClusterError):
            await self.namespace.exec(victim.workload.name, "python3", "-c", _TELL)

    async def annotate(self, api_version: str, kind: str, name: str, annotations: Mapping[str, str]) -> int | None:
        """As which version it has these annotations; None: it is gone."""
        body = {"metadata": {"annotations": dict(annotations)}}
        try:
            changed = await self.namespace.api.patch(api_version, kind, name, body, self.namespace.name)
        except ApiException:
            return None
        return int(changed["metadata"]["resourceVersion"])

    async def _reached(self, informer: Informer[Any], name: str, version: int | None) -> None:
        """The mirror has this version of an object, or a later one, or the object is gone."""
        changed = asyncio.Event()

        def tell(before: object, now: object) -> None:
            changed.set()

        def is_known() -> bool:
            one = informer.get(name, self.namespace.name)
            return one is None or (version is not None and int(one.metadata.resource_version) >= version)

        informer.subscribe(tell)
        try:
            async with asyncio.timeout(patient(self.patience_seconds)):
                while not is_known():
                    changed.clear()
                    await changed.wait()
        finally:
            informer.unsubscribe(tell)


def workload_of(pod: Object) -> RunningWorkload:
    """A pod, who is who its annotations say."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations", {})
    place = metadata["namespace"], metadata["name"], pod["spec"]["nodeName"]
    reference = WorkloadRef(metadata["uid"], *place, annotations.get(names.NAMESPACE_UID, ""))
    if names.ID not in annotations:
        return RunningWorkload(reference, None)
    index = int(annotations.get(names.INDEX, "0"))
    return RunningWorkload(reference, Identity(metadata["namespace"], annotations[names.ID], index))


def protected(identifier: str, deadline_seconds: float) -> Object:
    """Metadata of a pod that is opted in."""
    return {
        "labels": {names.PROTECTED: "true"},
        "annotations": {names.ID: identifier, names.POLICY: f"{deadline_seconds:g}"},
    }
