"""The real Kueue as the conformance suite plays it: bio's Job takes the whole cohort, and ml wants its half back.

A ValidatingAdmissionPolicy stands in for the webhook's hold: Kueue may suspend a protected Job that has the annotation
of the release alone. What the pod webhook writes, the stage writes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar

import aiohttp
from kubernetes_asyncio.client import ApiException

from cedana_sched.adapter.cluster import ClusterAccess
from cedana_sched.adapter.conformance import Power, RunningWorkload, Stage
from cedana_sched.adapter.conformance.stage import beside, loop_turns
from cedana_sched.kube.client import Api as ProductApi
from cedana_sched.kube.errors import ApiUnavailableError
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Mirror, Watch
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched_kueue.adapter import KueueAdapter
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import has_condition, is_gone, wait_for_all
from tests.cluster.fixtures.namespace import Namespace, container, job

KUEUE = "kueue.x-k8s.io/v1beta2"
HELD = "conformance-held"
"""Label of the Jobs whose suspension is refused."""
_UNTIL_TOLD = "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); signal.pause()"
_TELL = "import os, signal; os.kill(1, signal.SIGUSR1)"
_MARKER = "conformance/marker"


class _Api(ProductApi):
    """A client whose requests can be made to fail; its watches go on."""

    down = False

    async def _request(self, method: str, path: str, **how: Any) -> aiohttp.ClientResponse:
        if self.down:
            raise ApiUnavailableError(f"{method} {path}: cut off by the test", remedy="it is tried again")
        return await super()._request(method, path, **how)


class _Shared:
    """Policies by their names, which are their deadlines; no snapshots; no notes."""

    def named(self, name: str | None) -> CheckpointPolicy:
        return CheckpointPolicy(deadline_seconds=float(name or 600))

    def snapshots_of(self, namespace: str, identifier: str) -> tuple[()]:
        return ()

    async def read(self) -> None: ...

    async def write(self, notes: bytes) -> None: ...


class RealKueueStage(Stage):
    """Each job is a Job; the two queues of the namespace are there."""

    lacks: ClassVar = {
        Power.CANCELLATION: "Kueue stops a Workload that it has evicted, whatever comes then",
        Power.KEEPING: "Kueue cannot be asked for another victim",
        Power.DEADLINE: "Kueue waits as long as its suspension of the Job is refused",
        Power.STARTS: "its workloads are pods",
    }
    patience_seconds = 60.0

    def __init__(self, namespace: Namespace, image: str) -> None:
        self._namespace = namespace
        self._image = image
        self._numbers = itertools.count(1)
        self._jobs: list[str] = []
        self._mirrors: tuple[tuple[str, str, Mirror[Any]], ...] = ()
        self._api: _Api | None = None

    @asynccontextmanager
    async def adapter(self) -> AsyncIterator[KueueAdapter]:
        async with _Api.open(str(self._namespace.cluster.kubeconfig)) as api:
            assert isinstance(api, _Api)
            pods = Mirror(Watch(api, PODS, Pod, namespace=self._namespace.name, labels=f"{names.PROTECTED}=true"))
            shared = _Shared()
            access = ClusterAccess(api, EventRecorder(api, "test"), pods, shared, shared, "-", shared)
            adapter = KueueAdapter.connect(access)
            jobs, workloads = adapter._jobs, adapter._workloads
            self._api = api
            async with beside(pods.run(), adapter.run()):
                async with asyncio.timeout(self.patience_seconds):
                    for mirror in (pods, jobs, workloads):
                        await mirror.synced.wait()
                self._mirrors = (("v1", "Pod", pods), ("batch/v1", "Job", jobs), (KUEUE, "Workload", workloads))
                await loop_turns()
                try:
                    yield adapter
                finally:
                    self._mirrors = ()

    async def start(
        self, *, protected: bool = True, members: int = 1, deadline_seconds: float = 600.0
    ) -> tuple[RunningWorkload, ...]:
        await self._clear()
        name = f"bio{next(self._numbers)}"
        body = self._work(name, "bio", f"{800 // members}m", members)
        if protected:
            body["metadata"]["labels"][HELD] = "true"
            metadata = body["spec"]["template"]["metadata"]
            metadata["labels"][names.PROTECTED] = "true"
            metadata["annotations"] = {names.ID: name, names.POLICY: str(deadline_seconds)}
        await self._namespace.apply(body)
        pods = await self._namespace.pods(f"job={name}", count=members)
        for pod in pods if protected else ():
            metadata = pod["metadata"]
            index = metadata["annotations"]["batch.kubernetes.io/job-completion-index"]
            await self._patch("v1", "Pod", metadata["name"], {names.INDEX: index})
        await self.settle()
        return tuple(self._workload(name, pod, protected) for pod in pods)

    async def preempt(self, victim: RunningWorkload) -> None:
        owner = _job_of(victim)
        await self._namespace.apply(self._work(f"ml{next(self._numbers)}", "ml", "400m", 1))
        is_evicted = has_condition("Evicted")

        def decided(workloads: list[Object]) -> bool:
            owned = [one for one in workloads if one["metadata"]["ownerReferences"][0]["name"] == owner]
            return any(is_evicted(one) for one in owned)

        await wait_for_all(self._namespace.api, KUEUE, "Workload", decided, namespace=self._namespace.name)

    async def finish(self, victim: RunningWorkload) -> None:
        await self._namespace.exec(victim.workload.name, "python3", "-c", _TELL)
        await self._namespace.wait("batch/v1", "Job", _job_of(victim), has_condition("Complete"))

    async def is_evicted(self, victim: RunningWorkload) -> bool:
        found = await self._namespace.api.objects("v1", "Pod", self._namespace.name)
        there = [pod for pod in found if pod["metadata"]["uid"] == victim.uid]
        return not there or "deletionTimestamp" in there[0]["metadata"]

    async def evicted(self, victim: RunningWorkload) -> None:
        """Names of a Job's pods are not used twice."""
        patience = 2 * self.patience_seconds
        await self._namespace.wait("v1", "Pod", victim.workload.name, is_gone, within=patience)

    async def returned(self, victim: RunningWorkload) -> RunningWorkload:
        for preemptor in [name for name in self._jobs if name.startswith("ml")]:
            await self._delete(preemptor)
        (pod,) = await self._namespace.pods(f"job={_job_of(victim)}")
        await self._patch("v1", "Pod", pod["metadata"]["name"], {names.INDEX: "0"})
        await self.settle()
        return self._workload(_job_of(victim), pod, protected=True)

    async def settle(self) -> None:
        """What is changed last of each kind has reached the adapter. A changed Job makes Kueue try again."""
        marker = str(next(self._numbers))
        for api_version, kind, mirror in self._mirrors:
            found = await self._namespace.api.objects(api_version, kind, self._namespace.name)
            known = [one["metadata"]["name"] for one in found]
            for name in known:
                if mirror.get(name, self._namespace.name) is not None:
                    await self._patch(api_version, kind, name, {_MARKER: marker})
                    await self._reached(mirror, name, marker)
        await loop_turns()

    async def repeat(self) -> None:
        await self.settle()

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[None]:
        assert self._api is not None
        self._api.down = True
        try:
            yield
        finally:
            self._api.down = False

    async def _reached(self, mirror: Mirror[Any], name: str, marker: str) -> None:
        """The mirror knows of the marker, or of the end of what bears it."""
        changed = asyncio.Event()

        def tell(before: object, now: object) -> None:
            changed.set()

        def is_known() -> bool:
            one = mirror.get(name, self._namespace.name)
            return one is None or one.metadata.annotations.get(_MARKER) == marker

        mirror.subscribe(tell)
        try:
            async with asyncio.timeout(self.patience_seconds):
                while not is_known():
                    changed.clear()
                    await changed.wait()
        finally:
            mirror.unsubscribe(tell)

    async def _patch(self, api_version: str, kind: str, name: str, annotations: dict[str, str]) -> None:
        with suppress(ApiException):  # it is gone
            body = {"metadata": {"annotations": annotations}}
            await self._namespace.api.patch(api_version, kind, name, body, self._namespace.name)

    async def _clear(self) -> None:
        for name in tuple(self._jobs):
            await self._delete(name)
        api, namespace = self._namespace.api, self._namespace.name
        await wait_for_all(api, "v1", "Pod", lambda pods: not pods, namespace=namespace)

    async def _delete(self, name: str) -> None:
        self._jobs.remove(name)
        await self._namespace.delete("batch/v1", "Job", name)

    def _work(self, name: str, queue: str, cpu: str, members: int) -> Object:
        self._jobs.append(name)
        main = container(self._image, "python3", "-c", _UNTIL_TOLD, resources={"requests": {"cpu": cpu}})
        size = {"parallelism": members, "completions": members, "completionMode": "Indexed"}
        labels = {"kueue.x-k8s.io/queue-name": queue}
        return job(name, main, labels=labels, fields={"suspend": True, "backoffLimit": 0, **size})

    def _workload(self, name: str, pod: Object, protected: bool) -> RunningWorkload:
        metadata = pod["metadata"]
        index = int(metadata["annotations"]["batch.kubernetes.io/job-completion-index"])
        reference = WorkloadRef(metadata["uid"], metadata["namespace"], metadata["name"], pod["spec"]["nodeName"])
        return RunningWorkload(reference, Identity(metadata["namespace"], name, index) if protected else None)


def _job_of(pod: RunningWorkload) -> str:
    return pod.workload.name.split("-")[0]
