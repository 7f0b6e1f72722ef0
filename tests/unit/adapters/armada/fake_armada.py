"""Armada 0.22.7 as its clients see it, on a real gRPC server: what was measured and read of it, and its failures.

* A job's events are in the stream of its job set, in batches; ids are `milliseconds:batch:part:last`, and a stream goes
  on after whichever id it is asked for. Its ingester may write events twice, under new ids.
* A submission is published first, and its client id remembered after that; a client id that is remembered is answered
  with the old job, whatever has become of it. A call that is cancelled in between is published and not remembered.
* What is published is seen in the streams a little later (`ingesting = False` holds it back).
* A preempted job is over: `preempted` and `failed` come in one batch, and a later cancellation of it has no effect. The
  cancellation of a job set has no event of its own; of each of its jobs it is said that nobody asked for its own. What
  an admin cancels with a queue or on an executor is cancelled without a word before.
* Of a queue that its cache does not know yet, the server says PERMISSION_DENIED.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import msgspec
from armada_client.armada import event_pb2, event_pb2_grpc, job_pb2, job_pb2_grpc, submit_pb2, submit_pb2_grpc
from armada_client.k8s.io.api.core.v1 import generated_pb2 as core

GANG = "armadaproject.io/gangId"
_ULID_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_OVER = {submit_pb2.SUCCEEDED, submit_pb2.FAILED, submit_pb2.CANCELLED, submit_pb2.PREEMPTED}


class Made(msgspec.Struct):
    """A job as the server keeps it."""

    queue: str
    job_set: str
    job: submit_pb2.Job
    state: int = submit_pb2.QUEUED
    run: str = ""


class FakeArmada(submit_pb2_grpc.SubmitServicer, event_pb2_grpc.EventServicer, job_pb2_grpc.JobsServicer):
    """The server, and the cluster behind it, which does what the test says.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.jobs: dict[str, Made] = {}
        """By id, in the order of their submission."""
        self.remembered: dict[tuple[str, str], str] = {}
        self.queues = {"bio", "ml"}
        self.denied: set[str] = set()
        """Verbs that nobody has."""
        self.faults: dict[str, list[str]] = defaultdict(list)
        """By call: `before`, `published` or `after`; each fails one call there, as UNAVAILABLE."""
        self.ingesting = True
        self.down = False
        """Every call fails; `cut_streams` ends those that are under way."""
        self.stalled = False
        """Watches tell nothing; what is read is not affected."""
        self.database = True
        """Whether lookout's database knows what jobs are."""
        self.calls: list[str] = []
        self.authorizations: list[str] = []
        self.watching: list[tuple[str, str, str]] = []
        """Queue, job set and first id of every watch that was begun."""
        self._streams: dict[tuple[str, str], list[event_pb2.EventStreamMessage]] = defaultdict(list)
        self._unseen: list[tuple[tuple[str, str], list[event_pb2.EventMessage]]] = []
        self._news = asyncio.Event()
        self._batches = 0
        self._cut = 0

    @asynccontextmanager
    async def serving(
        self, credentials: grpc.ServerCredentials | None = None, port: int = 0, calls_per_connection: int | None = None
    ) -> AsyncIterator[str]:
        """Its address inside the block."""
        limit = [("grpc.max_concurrent_streams", calls_per_connection)] if calls_per_connection is not None else []
        server = grpc.aio.server(options=limit)
        submit_pb2_grpc.add_SubmitServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        event_pb2_grpc.add_EventServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        job_pb2_grpc.add_JobsServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated
        address = f"localhost:{port}"
        port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        await server.start()
        try:
            yield f"localhost:{port}"
        finally:
            await server.stop(grace=None)

    # what happens there

    def submit(self, queue: str, job_set: str, *items: submit_pb2.JobSubmitRequestItem) -> tuple[str, ...]:
        """As a person does."""
        return tuple(self._publish(queue, job_set, [item])[0] for item in items)

    def lease(self, job: str) -> str:
        """It has a place, and its pod is made; the run's id."""
        made = self.jobs[job]
        made.state, made.run = submit_pb2.PENDING, f"run-of-{job}"
        self._say(made, ("leased", {"cluster_id": "here"}), ("pending", {"cluster_id": "here"}))
        return made.run

    def run(self, job: str) -> str:
        run = self.lease(job)
        self.jobs[job].state = submit_pb2.RUNNING
        self._say(self.jobs[job], ("running", {"cluster_id": "here"}))
        return run

    def preempt(self, *jobs: str, by: str = "01preemptor") -> None:
        """By its scheduler, all in one cycle."""
        reason = f"Preempted by scheduler using fair share preemption - preempting job {by}"
        for job in jobs:
            made = self.jobs[job]
            made.state = submit_pb2.PREEMPTED
            told = {"run_id": made.run, "reason": reason, "preempting_job_id": by}
            self._say(made, ("preempted", told), ("failed", {"reason": reason}))

    def succeed(self, job: str) -> None:
        self.jobs[job].state = submit_pb2.SUCCEEDED
        self._say(self.jobs[job], ("succeeded", {}))

    def return_lease(self, job: str, pod: str = "") -> None:
        """`pod`: its uid, where there was one."""
        self.jobs[job].state = submit_pb2.QUEUED
        self._say(self.jobs[job], ("lease_returned", {"reason": "node went away", "kubernetes_id": pod}))

    def cancel(self, job: str) -> None:
        """By its id."""
        self.ask_to_cancel(job)
        self.carry_out_cancellation(job)

    def ask_to_cancel(self, job: str) -> None:
        self._say(self.jobs[job], ("cancelling", {"requestor": "anna"}))

    def carry_out_cancellation(self, job: str) -> None:
        """By the scheduler, in its next cycle; a job that is over stays as it is."""
        made = self.jobs[job]
        if made.state not in _OVER:
            made.state = submit_pb2.CANCELLED
            self._say(made, ("cancelled", {}))

    def cancel_job_set(self, queue: str, job_set: str) -> None:
        for made in self.jobs.values():
            if (made.queue, made.job_set) == (queue, job_set) and made.state not in _OVER:
                made.state = submit_pb2.CANCELLED
                self._say(made, ("cancelling", {}), ("cancelled", {}))

    def forget(self, job: str) -> None:
        """Its database is pruned, and its streams begin later."""
        made = self.jobs.pop(job)
        self._streams[made.queue, made.job_set].clear()

    def ingest(self) -> None:
        """What was held back is seen."""
        unseen, self._unseen, self.ingesting = self._unseen, [], True
        for key, messages in unseen:
            self._see(key, messages)

    def go_on(self) -> None:
        """Watches that were stalled tell what they have."""
        self.stalled = False
        self._wake()

    def cut_streams(self) -> None:
        """Every watch breaks."""
        self._cut += 1
        self._wake()

    def repeat(self) -> None:
        """Its ingester died before it had noted how far it was: all events come again."""
        for key, told in tuple(self._streams.items()):
            self._see(key, [one.message for one in told])

    def last_id(self, queue: str, job_set: str) -> str:
        """Where a stream stands that has told everything."""
        return self._streams[queue, job_set][-1].id

    def successors_of(self, job: str) -> list[str]:
        """Jobs that were made in its place, cancelled ones aside."""
        client = f"cedana-sched:{job}"
        alive = ((name, made) for name, made in self.jobs.items() if made.state != submit_pb2.CANCELLED)
        return [name for name, made in alive if made.job.client_id == client]

    # what it answers

    async def SubmitJobs(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name
        await self._receive("submit", context, request.queue, "submit", "submit_any_jobs")
        await self._fail("submit", "before", context)
        known = [self.remembered.get((request.queue, item.client_id)) for item in request.job_request_items]
        await asyncio.sleep(0)
        fresh = [item for item, job in zip(request.job_request_items, known, strict=True) if job is None]
        made = iter(self._publish(request.queue, request.job_set_id, fresh))
        await self._fail("submit", "published", context)
        await asyncio.sleep(0)
        jobs = [job or next(made) for job in known]
        for item, job in zip(request.job_request_items, jobs, strict=True):
            if item.client_id:
                self.remembered.setdefault((request.queue, item.client_id), job)
        await self._fail("submit", "after", context)
        answers = [submit_pb2.JobSubmitResponseItem(job_id=job) for job in jobs]
        return submit_pb2.JobSubmitResponse(job_response_items=answers)

    async def CancelJobs(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._receive("cancel", context, request.queue, "cancel", "cancel_any_jobs")
        for job in request.job_ids:
            self.cancel(job)
        return submit_pb2.CancellationResult(cancelled_ids=request.job_ids)

    async def GetJobDetails(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._heard("details", context)
        await self._fail("details", "before", context)
        found = {}
        for job in request.job_ids:
            if job in self.jobs and self.database:
                made = self.jobs[job]
                details = job_pb2.JobDetails(job_id=job, queue=made.queue, jobset=made.job_set, state=made.state)
                details.job_spec.CopyFrom(made.job)
                found[job] = details
        return job_pb2.JobDetailsResponse(job_details=found)

    async def GetJobSetEvents(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._heard("watch" if request.watch else "read", context)
        await self._fail("watch" if request.watch else "read", "before", context)
        if request.queue not in self.queues:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"[GetJobSetEvents] Queue {request.queue} does not exist")
        if "watch" in self.denied:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"[GetJobSetEvents] rpc error: code = PermissionDenied desc = error getting events for queue: "
                f"{request.queue}, job set: {request.id}: anonymous lacks permission watch required for action watch",
            )
        key, after, cut = (request.queue, request.id), _position(request.from_message_id), self._cut
        if request.watch:
            self.watching.append((*key, request.from_message_id))
        while True:
            for message in tuple(self._streams[key]):
                if _position(message.id) > after and not (request.watch and self.stalled):
                    after = _position(message.id)
                    yield message
            if not request.watch:
                return
            while cut == self._cut and (self.stalled or self._told(key, after)):
                await self._news.wait()
            if cut != self._cut:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "[GetJobSetEvents] error reading events: EOF")

    # how

    def _heard(self, call: str, context: Any) -> None:
        self.calls.append(call)
        metadata = dict(context.invocation_metadata())
        self.authorizations.append(metadata.get("authorization", ""))

    async def _receive(self, call: str, context: Any, queue: str, verb: str, permission: str) -> None:
        self._heard(call, context)
        if queue not in self.queues:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, f'could not find queue "{queue}"')
        if verb in self.denied:
            said = f"anonymous lacks permission {verb} required for action {verb} for queue {queue}; … of {permission}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, said)

    async def _fail(self, call: str, where: str, context: Any) -> None:
        if self.down:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connection refused")
        if where in self.faults[call]:
            self.faults[call].remove(where)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"killed {where}")

    def _publish(self, queue: str, job_set: str, items: list[Any]) -> list[str]:
        made = []
        for item in items:
            name = self._ulid()
            job = submit_pb2.Job(
                id=name,
                client_id=item.client_id,
                queue=queue,
                job_set_id=job_set,
                namespace=item.namespace,
                labels=_templated(item.labels, name),
                annotations=_templated(item.annotations, name),
                priority=item.priority,
                pod_spec=item.pod_spec,
            )
            job.pod_spec.tolerations.append(core.Toleration(key="armada", operator="Exists"))
            if GANG in job.annotations:
                job.labels[GANG] = job.annotations[GANG]
            self.jobs[name] = Made(queue, job_set, job)
            self._say(self.jobs[name], ("submitted", {"job": job}), ("queued", {}))
            made.append(name)
        return made

    def _ulid(self) -> str:
        value, digits = int(self._clock() * 1000), ""
        for _ in range(10):
            value, digit = divmod(value, 32)
            digits = _ULID_DIGITS[digit] + digits
        return f"{digits}{len(self.jobs):016d}"

    def _say(self, made: Made, *events: tuple[str, dict[str, Any]]) -> None:
        messages = []
        for name, fields in events:
            message = event_pb2.EventMessage()
            event = getattr(message, name)
            now = self._clock()
            event.created.seconds, event.created.nanos = int(now), int(now % 1 * 1e9)
            event.job_id, event.job_set_id, event.queue = made.job.id, made.job_set, made.queue
            for field, value in fields.items():
                if isinstance(value, str):
                    setattr(event, field, value)
                else:
                    getattr(event, field).CopyFrom(value)
            messages.append(message)
        key = (made.queue, made.job_set)
        if self.ingesting:
            self._see(key, messages)
        else:
            self._unseen.append((key, messages))

    def _see(self, key: tuple[str, str], messages: list[event_pb2.EventMessage]) -> None:
        self._batches += 1
        milliseconds = int(self._clock() * 1000)
        for part, message in enumerate(messages):
            name = f"{milliseconds}:{self._batches}:{part}:{int(part == len(messages) - 1)}"
            self._streams[key].append(event_pb2.EventStreamMessage(id=name, message=message))
        self._wake()

    def _told(self, key: tuple[str, str], after: tuple[int, int, int]) -> bool:
        return all(_position(one.id) <= after for one in self._streams[key])

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


def _templated(values: Any, job: str) -> dict[str, str]:
    return {key: value.replace("{JobId}", job) for key, value in values.items()}


def _position(identifier: str) -> tuple[int, int, int]:
    if not identifier:
        return (0, 0, 0)
    time, batch, part, _ = map(int, identifier.split(":"))
    return (time, batch, part)
