"""What a user of Armada does, through Armada's own client: queues, jobs, and the events of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import tenacity
from armada_client.armada import event_pb2, submit_pb2
from armada_client.armada.event_pb2 import JobPreemptedEvent
from armada_client.asyncio_client import ArmadaAsyncIOClient
from armada_client.event import Event
from armada_client.k8s.io.api.core.v1 import generated_pb2 as core_v1
from armada_client.typings import EventType
from google.protobuf import json_format

from tests.cluster.api.client import Object
from tests.cluster.api.waiting import WaitedInVainError
from tests.cluster.fixtures.namespace import container, pod
from tests.cluster.patience import patient

_QUEUE_KNOWN_WITHIN = 15
_OPTIONS = (("grpc.max_reconnect_backoff_ms", 1000),)


class Jobs:
    """Jobs of one Kubernetes namespace, which must be on every cluster that may run them.

    Args:
        client: of Armada.
        namespace: that the pods are made in.
    """

    def __init__(self, client: ArmadaAsyncIOClient, namespace: str) -> None:
        self.client = client
        self._namespace = namespace
        self._job_sets: set[tuple[str, str]] = set()

    @classmethod
    @asynccontextmanager
    async def opened(cls, address: str, namespace: str) -> AsyncIterator[Jobs]:
        """A client of the Armada at an address; what was submitted through it is cancelled at the end."""
        async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
            jobs = cls(ArmadaAsyncIOClient(channel), namespace)
            try:
                yield jobs
            finally:
                for queue, job_set in jobs._job_sets:
                    await jobs.client.cancel_jobset(queue=queue, job_set_id=job_set, filter_states=[])

    async def queue(self, name: str, *, priority_factor: float = 1) -> str:
        """Make a queue, and return its name; of two with the same factor each is owed half."""
        await self.client.create_queue(self.client.create_queue_request(name, priority_factor))
        return name

    async def submit(
        self,
        queue: str,
        job_set: str,
        *specs: Object,
        priority_class: str = "armada-preemptible",
        client_id: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Submit a job for each pod's spec, and return their ids; `pod_name` says what their pods are called.

        Raises:
            grpc.aio.AioRpcError: Armada refused.
        """
        items = [
            self.item(spec, priority_class=priority_class, client_id=client_id, labels=labels, annotations=annotations)
            for spec in specs
        ]
        return await self.submit_items(queue, job_set, *items)

    def item(
        self,
        spec: Object,
        *,
        priority_class: str = "armada-preemptible",
        client_id: str = "",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> submit_pb2.JobSubmitRequestItem:
        """One job of a submission of several that differ."""
        return self.client.create_job_request_item(
            pod_spec=_as_message({"priorityClassName": priority_class, **spec}),
            namespace=self._namespace,
            client_id=client_id,
            labels=dict(labels or {}),
            annotations=dict(annotations or {}),
        )

    async def submit_items(self, queue: str, job_set: str, *items: submit_pb2.JobSubmitRequestItem) -> list[str]:
        """Submit these together, and return their ids.

        Raises:
            grpc.aio.AioRpcError: Armada refused.
        """
        self._job_sets.add((queue, job_set))
        answer: submit_pb2.JobSubmitResponse = await self._submit(queue, job_set, items)
        return [one.job_id for one in answer.job_response_items]

    @tenacity.retry(  # the server looks once a second which queues there are
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(_QUEUE_KNOWN_WITHIN),
        retry=tenacity.retry_if_exception_message(match="(?s).*could not find queue.*"),
        reraise=True,
    )
    async def _submit(self, queue: str, job_set: str, items: Sequence[submit_pb2.JobSubmitRequestItem]) -> Any:
        return await self.client.submit_jobs(queue, job_set, list(items))

    async def events(self, queue: str, job_set: str, *, watch: bool = True) -> AsyncGenerator[Event, None]:
        """Every event of a job set from its first on: those that there are, or without end.

        One that is without end goes on when the server was away.
        """
        request = event_pb2.JobSetRequest(queue=queue, id=job_set, watch=watch)
        while True:
            stream = self.client.event_stub.GetJobSetEvents(request, wait_for_ready=watch)
            try:
                async for message in stream:
                    request.from_message_id = message.id
                    yield self.client.unmarshal_event_response(message)
            except grpc.aio.AioRpcError as error:
                if not watch or not _is_starting(error):
                    raise
            finally:
                stream.cancel()
            if not watch:
                return

    async def preempted(self, queue: str, job_set: str, count: int, *, within: float = 60) -> list[JobPreemptedEvent]:
        """Wait until so many jobs of a set were preempted, and return what was said of the first ones.

        Raises:
            TimeoutError: there were fewer.
        """
        victims: list[JobPreemptedEvent] = []
        async with asyncio.timeout(patient(within)), aclosing(self.events(queue, job_set)) as events:
            async for event in events:
                if isinstance(event.message, JobPreemptedEvent):
                    victims.append(event.message)
                if len(victims) == count:
                    break
        return victims

    async def wait_for(
        self, queue: str, job_set: str, wanted: Mapping[str, EventType], *, within: float = 60
    ) -> dict[str, Event]:
        """Wait until each of these jobs has had an event, and return those events by job.

        Args:
            queue: of the jobs.
            job_set: of the jobs.
            wanted: which event is waited for, by job.
            within: seconds.

        Raises:
            WaitedInVainError: one did not come; the message tells what came instead.
        """
        found: dict[str, Event] = {}
        seen: list[str] = []
        within = patient(within)
        try:
            async with asyncio.timeout(within), aclosing(self.events(queue, job_set)) as events:
                async for event in events:
                    job = event.message.job_id
                    seen.append(f"{job} {event.type.value}")
                    if wanted.get(job) == event.type:
                        found.setdefault(job, event)
                    if len(found) == len(wanted):
                        return found
        except TimeoutError:
            missing = {job: wanted[job].value for job in wanted.keys() - found.keys()}
            raise WaitedInVainError(f"{missing} not seen within {within} s; seen: {', '.join(seen)}") from None
        raise AssertionError("a stream of events that is watched never ends")


def _is_starting(error: grpc.aio.AioRpcError) -> bool:
    """Whether it is away, or serves before it is ready (`nil pointer dereference`, of one that was just restarted)."""
    return error.code() is grpc.StatusCode.UNAVAILABLE or "nil pointer dereference" in (error.details() or "")


def pod_name(job: str) -> str:
    """What the pod of a job is called."""
    return f"armada-{job}-0"


def pod_spec(
    image: str,
    *command: str,
    cpu: str = "100m",
    memory: str = "64Mi",
    env: Mapping[str, str] | None = None,
    **fields: Any,
) -> Object:
    """A pod of one container, with requests that are its limits: Armada takes no others; `fields` are the pod's."""
    amounts = {"cpu": cpu, "memory": memory}
    variables = [{"name": key, "value": value} for key, value in (env or {}).items()]
    main = container(image, *command, resources={"requests": amounts, "limits": amounts}, env=variables)
    spec: Object = pod("job", main, **fields)["spec"]
    return spec


def _as_message(spec: Object) -> core_v1.PodSpec:
    """A pod's spec as Armada takes it: quantities and volumes have another form in it than in JSON."""
    document = dict(spec)
    for kind in ("initContainers", "containers"):
        if kind in spec:
            document[kind] = [{**each, "resources": _quantities(each.get("resources", {}))} for each in spec[kind]]
    if "volumes" in spec:
        document["volumes"] = [_volume(**volume) for volume in spec["volumes"]]
    return json_format.ParseDict(document, core_v1.PodSpec())


def _quantities(resources: Mapping[str, Mapping[str, Any]]) -> Object:
    return {
        which: {name: {"string": str(quantity)} for name, quantity in amounts.items()}
        for which, amounts in resources.items()
    }


def _volume(name: str, **source: Any) -> Object:
    return {"name": name, "volumeSource": source}
