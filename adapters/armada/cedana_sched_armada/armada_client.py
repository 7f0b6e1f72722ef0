"""Client of Armada's server: the few calls needed, each with credentials, a timeout, and our exceptions.

The stubs are those of `armada-client`; its own client is not used, because it supports neither the submitted spec of a
job nor metadata, and its event stream reconnects silently.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import grpc
import grpc.aio
from armada_client.armada.event_pb2 import JobSetRequest
from armada_client.armada.event_pb2_grpc import EventStub
from armada_client.armada.job_pb2 import JobDetails, JobDetailsRequest
from armada_client.armada.job_pb2_grpc import JobsStub
from armada_client.armada.submit_pb2 import JobCancelRequest, JobSubmitRequest, JobSubmitRequestItem
from armada_client.armada.submit_pb2_grpc import SubmitStub

from cedana_sched_armada.credentials import Credentials, Metadata, channel_credentials, credentials_of
from cedana_sched_armada.errors import ArmadaError, ArmadaRefusedError, convert_grpc_error
from cedana_sched_armada.events import JobEvent, JobSet, read_event
from cedana_sched_armada.settings import ArmadaSettings

CALL_SECONDS = 30.0
READ_SECONDS = 120.0
"""For reading a stream's existing events."""
WATCH_SECONDS = 900.0
"""A watched stream is endless, and does not show whether its server is still healthy."""
WATCHES_PER_CONNECTION = 50
"""A proxy before Armada may allow 100 concurrent calls per connection (nginx: 128); further calls would queue
silently."""
DETAILS_AT_ONCE = 100
"""Servers refuse lookups above their `queryApi.maxQueryItems`, 500 by default."""
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.keepalive_time_ms", 30_000),  # servers allow one per 10 s; gRPC's default is one per 120 s
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),  # gRPC's default is two minutes; a preStop hook waits about 30 s
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise channels share one connection
)


class _Connection:
    """A connection, and its number of watched streams."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.events = EventStub(channel)  # type: ignore[no-untyped-call]  # generated without types
        self.watches = 0


class ArmadaClient:
    """Client of Armada; every method raises `ArmadaError`.

    Args:
        connect: creates a channel with a connection of its own.
        credentials: for every call.
    """

    def __init__(self, connect: Callable[[], grpc.aio.Channel], credentials: Credentials) -> None:
        self._connect = connect
        self._credentials = credentials
        self._calls = _Connection(connect())
        self._submit = SubmitStub(self._calls.channel)  # type: ignore[no-untyped-call]  # generated without types
        self._jobs = JobsStub(self._calls.channel)  # type: ignore[no-untyped-call]  # generated without types
        self._watched: list[_Connection] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: ArmadaSettings) -> AsyncIterator[ArmadaClient]:
        """Open a client inside the block; the first call shows whether a server answers.

        Raises:
            UsageError: a file in the settings cannot be read.
        """
        options = list(_OPTIONS)
        if settings.tls is None:
            connect = partial(grpc.aio.insecure_channel, settings.url, options=options)
        else:
            if settings.tls.server_name is not None:
                options.append(("grpc.ssl_target_name_override", settings.tls.server_name))
            secrets = channel_credentials(settings.tls)
            connect = partial(grpc.aio.secure_channel, settings.url, secrets, options=options)
        server = cls(connect, credentials_of(settings.auth))
        try:
            yield server
        finally:
            for connection in (server._calls, *server._watched):
                await connection.channel.close()

    async def events(self, job_set: JobSet, since: str, *, watch: bool) -> AsyncGenerator[JobEvent, None]:
        """Yield events of a job set after the event `since`; with `watch` also new ones, for `WATCH_SECONDS`.

        A nonexistent job set has no events yet.
        """
        request = JobSetRequest(id=job_set.name, queue=job_set.queue, from_message_id=since, watch=watch)
        timeout = WATCH_SECONDS if watch else READ_SECONDS
        metadata = await self._metadata()
        connection = self._connection_for_watch() if watch else self._calls
        connection.watches += watch
        stream = connection.events.GetJobSetEvents(request, metadata=metadata, timeout=timeout)
        try:
            async for message in stream:
                event = read_event(message)
                if event is not None:
                    yield event
        except grpc.RpcError as error:
            if watch and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return
            needs = f"verb watch on queue {job_set.queue}, or watch_all_events"
            raise self._convert_error(f"events of job set {job_set}", error, needs) from error
        finally:
            stream.cancel()
            connection.watches -= watch

    async def submit(self, job_set: JobSet, items: Sequence[JobSubmitRequestItem]) -> tuple[str, ...]:
        """Submit jobs; return their ids, in order. A client id used before yields the id of the existing job.

        Raises:
            ArmadaRefusedError: one of them was not accepted.
        """
        request = JobSubmitRequest(queue=job_set.queue, job_set_id=job_set.name, job_request_items=items)
        call = f"submission to job set {job_set}"
        try:
            answer = await self._submit.SubmitJobs(request, metadata=await self._metadata(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            needs = f"verb submit on queue {job_set.queue}, or submit_any_jobs"
            raise self._convert_error(call, error, needs) from error
        refused = [item.error for item in answer.job_response_items if item.error]
        if refused:
            raise ArmadaRefusedError(f"{call}: {refused[0]}", remedy="see the message")
        return tuple(item.job_id for item in answer.job_response_items)

    async def job_details(self, jobs: Iterable[str]) -> dict[str, JobDetails]:
        """Return jobs from Armada's database, by id: their state, and `job_spec`, the submission."""
        wanted, found = sorted(set(jobs)), dict[str, JobDetails]()
        for start in range(0, len(wanted), DETAILS_AT_ONCE):
            request = JobDetailsRequest(job_ids=wanted[start : start + DETAILS_AT_ONCE], expand_job_spec=True)
            try:
                answer = await self._jobs.GetJobDetails(request, metadata=await self._metadata(), timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                raise self._convert_error("details of jobs", error, "") from error
            found |= dict(answer.job_details)
        return found

    async def cancel(self, job_set: JobSet, job: str, reason: str) -> None:
        """Cancel one job; a finished one is not changed."""
        request = JobCancelRequest(queue=job_set.queue, job_set_id=job_set.name, job_ids=[job], reason=reason)
        try:
            await self._submit.CancelJobs(request, metadata=await self._metadata(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            needs = f"verb cancel on queue {job_set.queue}, or cancel_any_jobs"
            raise self._convert_error(f"cancellation of job {job}", error, needs) from error

    def _connection_for_watch(self) -> _Connection:
        for connection in self._watched:
            if connection.watches < WATCHES_PER_CONNECTION:
                return connection
        self._watched.append(_Connection(self._connect()))
        return self._watched[-1]

    async def _metadata(self) -> Metadata:
        return await self._credentials.metadata()

    def _convert_error(self, call: str, error: grpc.RpcError, needs: str) -> ArmadaError:
        if error.code() is grpc.StatusCode.UNAUTHENTICATED:
            self._credentials.on_rejected()
        return convert_grpc_error(call, error, needs=needs)
