"""The server for the API server's questions, over HTTPS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from aiohttp import web

from cedana_sched_webhooks import admission
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.holds.first_requests import FirstRequests
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.schedulers import Handler

log = structlog.get_logger(__name__)

LONGEST_REQUEST_BYTES: Final = 8 << 20
"""An UPDATE carries the object twice, and etcd takes 1.5 MiB of each."""
REPEATED_SECONDS: Final = 60.0
"""A refusal that comes again within so long is told of at `debug`."""


def admission_application(handlers: Mapping[str, Handler], ending: asyncio.Event, metrics: Metrics) -> web.Application:
    """Answers reviews; `handlers` are by path. The API server waits while a handler does.

    Once `ending` is set, connections that are open are closed with their next answer.
    """
    application = web.Application(client_max_size=LONGEST_REQUEST_BYTES)
    asked = FirstRequests(time.monotonic, longest_gap_seconds=REPEATED_SECONDS)
    for path, handler in handlers.items():
        application.router.add_post(path, _endpoint(path, handler, ending, metrics, asked))
    return application


def _endpoint(
    path: str, handler: Handler, ending: asyncio.Event, metrics: Metrics, asked: FirstRequests
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def respond(received: web.Request) -> web.Response:
        try:
            body = await received.read()
        except web.HTTPRequestEntityTooLarge as error:
            metrics.requests.labels(path, "unreadable").inc()
            log.warning("admission", webhook=path, decision="unreadable", why=error.text)
            raise
        began = time.perf_counter()
        try:
            request = admission.read(body)
        except (ValueError, RecursionError) as error:
            metrics.requests.labels(path, "unreadable").inc()
            return web.Response(status=400, text=f"no AdmissionReview: {error}")
        try:
            answer = await handler(request)
        except Exception:  # the API server goes on without us (failurePolicy), and is told that it must
            metrics.requests.labels(path, "failed").inc()
            log.exception("admission", webhook=path, namespace=request.namespace, name=request.name)
            raise
        _tell(path, request, answer, metrics, asked)
        metrics.duration.labels(path).observe(time.perf_counter() - began)
        response = web.Response(body=admission.write(request, answer), content_type="application/json")
        if ending.is_set():  # API servers keep connections open, and would come to us to the last moment
            response.force_close()
        return response

    return respond


def _tell(path: str, request: Request, answer: Answer, metrics: Metrics, asked: FirstRequests) -> None:
    metrics.requests.labels(path, answer.decision).inc()
    metrics.warnings.labels(path).inc(len(answer.warnings))
    if answer.decision == "not-ours":
        return
    refused = answer.refusal.message if answer.refusal is not None else None
    tell = log.debug if _is_repeated(path, request, answer, asked) else log.info
    tell(
        "admission",
        webhook=path,
        decision=answer.decision,
        namespace=request.namespace,
        name=request.name,
        warnings=answer.warnings,
        refused=refused,
    )


def _is_repeated(path: str, request: Request, answer: Answer, asked: FirstRequests) -> bool:
    """Whether it is the same 429 again: a scheduler asks once a second for as long as it is held."""
    if answer.refusal is None or answer.refusal.code != 429 or request.old_object is None:
        return False
    uid = request.old_object["metadata"].get("uid")
    return asked.waited((path, uid, answer.decision)) > 0
