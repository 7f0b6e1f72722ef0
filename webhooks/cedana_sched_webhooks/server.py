"""The server for the API server's questions, over HTTPS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec
import structlog
from aiohttp import web

from cedana_sched_webhooks import admission
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.schedulers import Handler
from cedana_sched_webhooks.tls import ServingCertificate

log = structlog.get_logger(__name__)

LONGEST_REQUEST_BYTES: Final = 8 << 20
"""An UPDATE carries the object twice, and etcd takes 1.5 MiB of each."""
LONGEST_END_SECONDS: Final = 3.0
"""For requests that are under way when we end."""


def admission_application(handlers: Mapping[str, Handler], ending: asyncio.Event, metrics: Metrics) -> web.Application:
    """Answers reviews; `handlers` are by path. The API server waits while a handler does.

    Once `ending` is set, connections that are open are closed with their next answer.
    """
    application = web.Application(client_max_size=LONGEST_REQUEST_BYTES)
    for path, handler in handlers.items():
        application.router.add_post(path, _endpoint(path, handler, ending, metrics))
    return application


def _endpoint(
    path: str, handler: Handler, ending: asyncio.Event, metrics: Metrics
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(received: web.Request) -> web.Response:
        body = await received.read()
        began = time.perf_counter()
        try:
            request = admission.read(body)
        except msgspec.DecodeError as error:
            metrics.requests.labels(path, "unreadable").inc()
            return web.Response(status=400, text=f"no AdmissionReview: {error}")
        try:
            answer = await handler(request)
        except Exception:  # the API server goes on without us (failurePolicy), and is told that it must
            metrics.requests.labels(path, "failed").inc()
            log.exception("admission", webhook=path, namespace=request.namespace, name=request.name)
            raise
        _tell(path, request, answer, metrics)
        metrics.duration.labels(path).observe(time.perf_counter() - began)
        response = web.Response(body=admission.write(request, answer), content_type="application/json")
        if ending.is_set():  # API servers keep connections open, and would come to us to the last moment
            response.force_close()
        return response

    return respond


def _tell(path: str, request: Request, answer: Answer, metrics: Metrics) -> None:
    metrics.requests.labels(path, answer.decision).inc()
    metrics.warnings.labels(path).inc(len(answer.warnings))
    if answer.decision == "not-ours":
        return
    refused = answer.refusal.message if answer.refusal is not None else None
    log.info(
        "admission",
        webhook=path,
        decision=answer.decision,
        namespace=request.namespace,
        name=request.name,
        warnings=answer.warnings,
        refused=refused,
    )


@asynccontextmanager
async def listening(
    application: web.Application, port: int, serving: ServingCertificate | None = None, *, host: str | None = None
) -> AsyncIterator[int]:
    """Serve while the context lasts, then until requests under way have been answered. Gives the port.

    Args:
        application: what is served.
        port: 0 takes any free one, for which a `host` must be given.
        serving: the certificate; without one it is plain HTTP.
        host: the address to listen at, None for all.
    """
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=LONGEST_END_SECONDS)
    await runner.setup()
    try:
        context = serving.context if serving is not None else None
        site = web.TCPSite(runner, host, port, ssl_context=context)
        await site.start()
        address = runner.addresses[0]
        yield int(address[1])
    finally:
        await runner.cleanup()
