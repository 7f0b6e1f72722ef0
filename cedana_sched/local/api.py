"""The engine's API: HTTP and JSON over a unix socket that only its owner can open.

Routes are those of `client.EngineClient`, bodies those of `views`. Every error response is a `Problem`. There is no
authentication beyond the socket's mode: a process that can open the socket has the user of the jobs anyway.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from aiohttp import web

from cedana_sched.local.client import socket_path
from cedana_sched.local.views import Change, EngineView, JobView, Problem, Submission
from cedana_sched.model.errors import CedanaSchedError, NotFoundError, RefusedError, UsageError

log = structlog.get_logger()


class _CheckpointBody(msgspec.Struct, forbid_unknown_fields=True):
    leave_running: bool = False


class _RestoreBody(msgspec.Struct, forbid_unknown_fields=True):
    generation: int | None = None


class Service(Protocol):
    """The service behind the API. `key` is a job's uid, uid prefix, name or checkpoint id."""

    def engine_view(self) -> EngineView: ...
    def jobs(self) -> list[JobView]: ...
    def job(self, key: str) -> JobView: ...
    async def submit(self, submission: Submission) -> JobView: ...
    async def preempt(self, key: str) -> JobView: ...
    async def checkpoint(self, key: str, *, leave_running: bool) -> JobView: ...
    async def restore(self, key: str, generation: int | None) -> JobView: ...
    async def cancel(self, key: str) -> JobView: ...
    def watch(self) -> AsyncIterator[Change]: ...


@contextlib.asynccontextmanager
async def serve(service: Service, state_directory: Path) -> AsyncIterator[Path]:
    """Serve inside the block; yields the socket's path once the server accepts connections."""
    path = socket_path(state_directory)
    path.unlink(missing_ok=True)  # of a killed engine: this process holds the state directory's lock
    runner = web.AppRunner(_application(service), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(path)).start()
        path.chmod(0o600)
        yield path
    finally:
        await runner.cleanup()
        path.unlink(missing_ok=True)


def _application(service: Service) -> web.Application:
    async def engine(_: web.Request) -> web.Response:
        return _json(service.engine_view())

    async def jobs(_: web.Request) -> web.Response:
        return _json(service.jobs())

    async def job(request: web.Request) -> web.Response:
        return _json(service.job(request.match_info["key"]))

    async def submit(request: web.Request) -> web.Response:
        return _json(await service.submit(_decode(await request.read(), Submission)), status=201)

    async def preempt(request: web.Request) -> web.Response:
        return _json(await service.preempt(request.match_info["key"]))

    async def checkpoint(request: web.Request) -> web.Response:
        body = _decode(await request.read() or b"{}", _CheckpointBody)
        return _json(await service.checkpoint(request.match_info["key"], leave_running=body.leave_running))

    async def restore(request: web.Request) -> web.Response:
        body = _decode(await request.read() or b"{}", _RestoreBody)
        return _json(await service.restore(request.match_info["key"], body.generation))

    async def cancel(request: web.Request) -> web.Response:
        return _json(await service.cancel(request.match_info["key"]))

    async def watch(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async with contextlib.aclosing(service.watch()) as changes:  # type: ignore[type-var]  # an async generator
            with contextlib.suppress(ConnectionResetError):  # the watcher has disconnected
                async for change in changes:
                    await response.write(msgspec.json.encode(change) + b"\n")
        return response

    application = web.Application(middlewares=[_error_middleware])
    application.add_routes(
        [
            web.get("/v1/engine", engine),
            web.get("/v1/jobs", jobs),
            web.post("/v1/jobs", submit),
            web.get("/v1/jobs/{key:.+}", job),
            web.post("/v1/jobs/{key:.+}/preempt", preempt),
            web.post("/v1/jobs/{key:.+}/checkpoint", checkpoint),
            web.post("/v1/jobs/{key:.+}/restore", restore),
            web.post("/v1/jobs/{key:.+}/cancel", cancel),
            web.get("/v1/watch", watch),
        ]
    )
    return application


@web.middleware
async def _error_middleware(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except UsageError as error:
        status = 404 if isinstance(error, NotFoundError) else 409 if isinstance(error, RefusedError) else 400
        return _json(Problem(error.message, error.remedy, error.field, type(error).__name__), status=status)
    except CedanaSchedError as error:
        problem = Problem(error.message, error.remedy, None, type(error).__name__, error.evidence)
        return _json(problem, status=409)
    except web.HTTPException as error:
        return _json(Problem(f"{request.method} {request.path}: {error.reason}"), status=error.status)
    except Exception as error:  # a defect: the client gets a `Problem` too
        log.exception("request failed", method=request.method, path=request.path)
        problem = Problem(f"the engine failed: {error!r}", "see the engine's log, and report it", kind="InternalError")
        return _json(problem, status=500)


def _decode(data: bytes, expected: type[Any]) -> Any:
    try:
        return msgspec.json.decode(data, type=expected)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            "request", data.decode(errors="replace")[:200], str(error), remedy="see the API's text"
        ) from error


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
