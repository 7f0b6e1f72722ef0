"""Client of a running engine's API over its unix socket."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec

from cedana_sched.local.views import Change, EngineView, JobView, Problem, Submission
from cedana_sched.model import errors
from cedana_sched.model.errors import CedanaSchedError, NotFoundError, RefusedError, UsageError

SOCKET_NAME = "engine.sock"
_LONGEST_SOCKET_PATH = 107
"""Maximum bytes of a unix socket's path, unix(7)."""
DEFAULT_STATE_DIRECTORY = Path("/var/lib/cedana-sched")

T = TypeVar("T")


def socket_path(state_directory: Path) -> Path:
    """Return the path of the socket on which the engine of a state directory serves.

    Raises:
        UsageError: the directory's path is too long for a unix socket below it.
    """
    path = state_directory / SOCKET_NAME
    if len(os.fsencode(path)) > _LONGEST_SOCKET_PATH:
        most = _LONGEST_SOCKET_PATH - len(SOCKET_NAME) - 1
        remedy = f"choose one of at most {most} bytes"
        raise UsageError("state-dir", str(state_directory), "is too long a path for the engine's socket", remedy=remedy)
    return path


class EngineUnreachableError(CedanaSchedError):
    """No engine serves this state directory."""


class EngineRefusedError(CedanaSchedError):
    """The request is valid, but the engine cannot perform it now."""


class EngineClient:
    """One connection to the engine of a state directory; use it as an async context manager."""

    def __init__(self, state_directory: Path = DEFAULT_STATE_DIRECTORY) -> None:
        self._socket = socket_path(state_directory)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(str(self._socket))
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def engine(self) -> EngineView:
        return await self._call("GET", "/v1/engine", EngineView)

    async def submit(self, submission: Submission) -> JobView:
        """Queue a job.

        Raises:
            UsageError: a field is invalid; the error names it.
        """
        return await self._call("POST", "/v1/jobs", JobView, body=submission)

    async def jobs(self) -> list[JobView]:
        """Return all jobs of the engine's journal, oldest first."""
        return await self._call("GET", "/v1/jobs", list[JobView])

    async def job(self, key: str) -> JobView:
        """Return a job by uid, unambiguous uid prefix, name or checkpoint id (newest first).

        Raises:
            NotFoundError: no job matches.
        """
        return await self._call("GET", f"/v1/jobs/{_encode_path_segment(key)}", JobView)

    async def preempt(self, key: str) -> JobView:
        """Preempt the job as the scheduler would; the job is requeued. Returns once the preemption is under way."""
        return await self._call("POST", f"/v1/jobs/{_encode_path_segment(key)}/preempt", JobView)

    async def checkpoint(self, key: str, *, leave_running: bool) -> JobView:
        """Take a snapshot: the job keeps running, or is suspended until `restore`. Returns once the snapshot is taken.

        Raises:
            SnapshotError: the snapshot failed; the message explains CRIU's error.
            EngineRefusedError: the job is in a phase without processes to freeze.
        """
        body = {"leave_running": leave_running}
        return await self._call("POST", f"/v1/jobs/{_encode_path_segment(key)}/checkpoint", JobView, body=body)

    async def restore(self, key: str, generation: int | None = None) -> JobView:
        """Requeue an ended or suspended job, to be restored from its newest snapshot or from `generation`."""
        return await self._call(
            "POST", f"/v1/jobs/{_encode_path_segment(key)}/restore", JobView, body={"generation": generation}
        )

    async def cancel(self, key: str) -> JobView:
        return await self._call("POST", f"/v1/jobs/{_encode_path_segment(key)}/cancel", JobView)

    async def watch(self) -> AsyncGenerator[Change, None]:
        """Yield the current state of every job, then each change, until the engine stops.

        Raises:
            EngineUnreachableError: no engine serves, or the engine was killed during the watch.
        """
        try:
            async with self._open_request("GET", "/v1/watch") as response:
                await _raise_for_problem(response)
                async for line in response.content:
                    yield msgspec.json.decode(line, type=Change)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise self._unreachable() from error

    async def _call(self, method: str, path: str, expected: type[T], body: Any = None) -> T:
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._open_request(method, path, data=data) as response:
                await _raise_for_problem(response)
                return msgspec.json.decode(await response.read(), type=expected)
        except aiohttp.ClientConnectionError as error:
            raise self._unreachable() from error

    def _open_request(self, method: str, path: str, data: bytes | None = None) -> Any:
        if self._session is None:
            raise RuntimeError("use EngineClient as an async context manager")
        return self._session.request(method, f"http://engine{path}", data=data)

    def _unreachable(self) -> EngineUnreachableError:
        return EngineUnreachableError(
            f"no engine answers at {self._socket}",
            remedy="start one with 'cedana-sched engine run', or name its --state-dir",
        )


def _encode_path_segment(key: str) -> str:
    """Return a user's input, percent-encoded as one path segment."""
    return quote(key, safe="")


async def _raise_for_problem(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:  # HTTP: 4xx and 5xx are errors
        return
    problem = msgspec.json.decode(await response.read(), type=Problem)
    if problem.field is not None:
        kind = {"NotFoundError": NotFoundError, "RefusedError": RefusedError}.get(problem.kind, UsageError)
        raise kind.from_wire_message(problem.field, problem.message, remedy=problem.remedy)
    raise _error_class(problem.kind)(problem.message, remedy=problem.remedy, evidence=problem.evidence)


def _error_class(name: str) -> type[CedanaSchedError]:
    """Return the error class that the engine raised if the model has it, else `EngineRefusedError`."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, CedanaSchedError) and not issubclass(kind, UsageError):
        return kind
    return EngineRefusedError
