"""A small world: an Armada, the pods of its jobs in our cluster, and coordinators that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from armada_client.armada.submit_pb2 import JobSubmitRequestItem
from armada_client.k8s.io.api.core.v1 import generated_pb2 as core

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, Report
from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.kube.client import Api
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.watching import Informer
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, Verdict
from cedana_sched_armada.adapter import ArmadaAdapter
from cedana_sched_armada.settings import ArmadaSettings
from tests.unit.adapters.armada.fake_armada import GANG, FakeArmada
from tests.unit.cluster.coordinator.filled_mirrors import filled

NAMESPACE = "research"
QUEUE = "bio"
JOB_SET = "md"
LONGEST_WAIT = 10.0
"""A test that waits longer for an event has failed."""


class KilledError(BaseException):
    """The process died here."""


class KilledAt:
    """Runs work that dies at its `number`-th wait; `survived` when it has fewer."""

    def __init__(self, work: Awaitable[Any], number: int) -> None:
        self._work = work
        self._left = number
        self.survived = False

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        sent: Any = None
        try:
            while True:
                waited_for = steps.send(sent)
                if self._left == 0:
                    try:
                        steps.throw(KilledError())
                    except KilledError:
                        return
                self._left -= 1
                sent = yield waited_for
        except StopIteration:
            self.survived = True


class OnePolicy:
    """By name: built-in defaults. Of a pod: another one, if it is set, as a queue or a selector may give it."""

    def __init__(self) -> None:
        self.of_pods = CheckpointPolicy()

    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return self.of_pods


class KeptSnapshots:
    """What has been saved, by namespace, id and index."""

    def __init__(self) -> None:
        self.known: set[SnapshotRef] = set()

    def add(self, identifier: str, index: int = 0) -> None:
        self.known.add(SnapshotRef(Identity(NAMESPACE, identifier, index), 1))

    def snapshots_of(self, namespace: str, identifier: str) -> list[SnapshotRef]:
        return [one for one in self.known if (one.identity.namespace, one.identity.id) == (namespace, identifier)]


class KeptNotes:
    """A ConfigMap's worth of text. A write says that it has `entered`, and waits at the `gate`, where there is one."""

    def __init__(self) -> None:
        self.text: bytes | None = None
        self.entered = asyncio.Event()
        self.gate: asyncio.Event | None = None

    async def read(self) -> bytes | None:
        return self.text

    async def write(self, notes: bytes) -> None:
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        await asyncio.sleep(0)
        self.text = notes


class HeardEvents(EventRecorder):
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[ObjectEvent] = []

    def record_event(self, event: ObjectEvent) -> None:
        self.told.append(event)


class Coordinator:
    """An adapter that runs, and what it has reported."""

    def __init__(self, adapter: ArmadaAdapter) -> None:
        self.adapter = adapter
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.running: asyncio.Task[None] | None = None

    async def read(self) -> None:
        async for report in self.adapter.reports():
            self.reports.put_nowait(report)

    async def report(self) -> Report:
        """The next one; what ended the adapter, if that comes first."""
        getting = asyncio.create_task(self.reports.get())
        assert self.running is not None
        await asyncio.wait({getting, self.running}, timeout=LONGEST_WAIT, return_when=asyncio.FIRST_COMPLETED)
        if self.running.done():
            self.running.result()
        if not getting.done():
            getting.cancel()
            raise AssertionError("nothing was reported")
        return getting.result()

    async def signal(self) -> Signal:
        report = await self.report()
        assert isinstance(report, Preempted)
        return report.signal

    async def release(self, signal: Signal, verdict: Verdict = Verdict.COMMITTED) -> None:
        await self.adapter.release(release_of(signal, verdict))


def release_of(signal: Signal, verdict: Verdict = Verdict.COMMITTED) -> Release:
    return Release(signal.uid, {victim.workload.uid: verdict for victim in signal.victims})


class World:
    """Armada at `address`. `now` is everybody's clock; who sleeps puts it forward."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.armada = FakeArmada(lambda: self.now)
        self.address = ""
        self.pods: Informer[Pod] = filled()
        self.pods.synced.set()
        self.snapshots = KeptSnapshots()
        self.policies = OnePolicy()
        self.notes = KeptNotes()
        self.events = HeardEvents()
        self.let_go: list[str] = []
        self.slept: list[float] = []
        self.settings: dict[str, Any] = {}
        self._made = 0
        self._made_pods: dict[str, Pod] = {}
        """The last one of each job, whether it shows or not."""

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def adapter(self) -> ArmadaAdapter:
        cluster = ClusterAccess(
            api=cast("Api", None),
            events=self.events,
            pods=self.pods,
            policies=self.policies,
            snapshots=self.snapshots,
            namespace="cedana-system",
            notes=self.notes,
            settings={"url": self.address, **self.settings},
        )
        return ArmadaAdapter(cluster, ArmadaSettings.read(cluster.settings), clock=lambda: self.now, sleep=self.sleep)

    @asynccontextmanager
    async def coordinator(self) -> AsyncIterator[Coordinator]:
        """One that lives as long as the block."""
        coordinator = Coordinator(self.adapter())
        coordinator.running = asyncio.create_task(coordinator.adapter.run())
        reading = asyncio.create_task(coordinator.read())
        try:
            yield coordinator
            for task in (coordinator.running, reading):
                if task.done():
                    task.result()
        finally:
            for task in (coordinator.running, reading):
                task.cancel()
            await asyncio.gather(coordinator.running, reading, return_exceptions=True)

    def submit(self, job_set: str = JOB_SET, **written: Any) -> str:
        (job,) = self.armada.submit(QUEUE, job_set, item(**written))
        return job

    def running(self, job_set: str = JOB_SET, **written: Any) -> str:
        """A job that is submitted, and runs here."""
        job = self.submit(job_set, **written)
        self.start(job)
        return job

    def gang(self, size: int, identifier: str = "gang-1", job_set: str = JOB_SET) -> tuple[str, ...]:
        annotations = {GANG: identifier, "armadaproject.io/gangCardinality": str(size)}
        return self.armada.submit(QUEUE, job_set, *(item(annotations=annotations) for _ in range(size)))

    def start(self, job: str, *, phase: str = "Running", protected: bool = True) -> str:
        """It runs here; its pod's uid."""
        run = self.armada.run(job) if phase == "Running" else self.armada.lease(job)
        self._made += 1
        made = self.armada.jobs[job]
        identifier = made.job.annotations.get(names.ID) or job
        metadata = Metadata(
            name=f"armada-{job}-0",
            namespace=made.job.namespace,
            uid=f"pod-{self._made}-of-{job}",
            resource_version=str(self._made),
            labels={"armada_job_id": job, "armada_job_run_id": run, "armada_queue_id": made.queue},
            annotations={**made.job.annotations, "armada_jobset_id": made.job_set, names.ID: identifier},
            creation_timestamp=rfc3339(self.now),
        )
        pod = Pod(metadata, PodSpec(node_name="node-1"), PodStatus(phase=phase, start_time=rfc3339(self.now)))
        self._made_pods[job] = pod
        if protected:
            self.pods._put(pod)
        return metadata.uid

    def show(self, job: str, **metadata: Any) -> None:
        """Its pod, which was there before, is seen now."""
        pod = self._made_pods[job]
        self.pods._put(msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **metadata)))

    def pod_of(self, job: str) -> Pod:
        pod = self.pods.get(f"armada-{job}-0", NAMESPACE)
        assert pod is not None
        return pod

    def change(self, job: str, *, phase: str | None = None, **metadata: Any) -> None:
        self._made += 1
        pod = self.pod_of(job)
        known = msgspec.structs.replace(pod.metadata, resource_version=str(self._made), **metadata)
        status = pod.status if phase is None else msgspec.structs.replace(pod.status, phase=phase)
        self.pods._put(msgspec.structs.replace(pod, metadata=known, status=status))

    def delete(self, job: str) -> None:
        self.pods._drop(self.pod_of(job))


def item(
    *, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, variable: str = ""
) -> JobSubmitRequestItem:
    """What a person submits."""
    container = core.Container(name="main", image="busybox", command=["simulate"])
    if variable:
        container.env.append(core.EnvVar(name="CEDANA_CHECKPOINT", value=variable))
    return JobSubmitRequestItem(
        priority=3,
        namespace=NAMESPACE,
        labels=labels or {},
        annotations=annotations or {},
        pod_spec=core.PodSpec(containers=[container], priorityClassName="armada-preemptible"),
    )


def rfc3339(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody else work until it holds."""
    async with asyncio.timeout(LONGEST_WAIT):
        while not condition():  # noqa: ASYNC110 - what the fake knows has no event
            await asyncio.sleep(0.002)


async def preempted(world: World, coordinator: Coordinator, job: str) -> Signal:
    world.armada.preempt(job)
    return await coordinator.signal()
