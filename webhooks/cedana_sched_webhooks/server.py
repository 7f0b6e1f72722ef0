"""HTTPS server for admission reviews."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog
from aiohttp import web

from cedana_sched.component.bodies import read_body
from cedana_sched.component.callers import Callers, Respond, route_authenticated
from cedana_sched.eviction_holds.first_requests import FirstRequests
from cedana_sched_webhooks import admission
from cedana_sched_webhooks.admission import Answer, Request
from cedana_sched_webhooks.metrics import Metrics
from cedana_sched_webhooks.schedulers import Endpoint, Handler

log = structlog.get_logger(__name__)

LONGEST_REQUEST_BYTES: Final = 8 << 20
"""An UPDATE contains the object twice, and etcd stores up to 1.5 MiB of each."""
LARGE_BYTES: Final = 128 << 10
"""Larger reviews need a slot of `LARGE_AT_ONCE`."""
LARGE_AT_ONCE: Final = 8
"""Bounds the memory of large reviews, however many tenants cause them at once."""
READ_SECONDS: Final = 10.0
"""For the body of a large review; the API server waits for 5 s."""
REPEATED_SECONDS: Final = 60.0
"""A refusal repeated within this interval is logged at `debug`."""


def admission_application(
    handlers: Mapping[str, Handler], ending: asyncio.Event, metrics: Metrics, callers: Callers | None = None
) -> web.Application:
    """Build the application that answers reviews; `handlers` are by path. The API server waits for each handler.

    With `callers`, each path has a secret segment as prefix that only the API server has, and other callers get no
    answer: their bodies are not read. Without, callers are not authenticated.

    The number of large reviews at a time is bounded. An object above `Shape.largest_bytes` whose shape has no `large`
    is allowed with a warning.

    Once `ending` is set, open connections are closed with their next response.
    """
    application = web.Application()
    requests = FirstRequests(time.monotonic, longest_gap_seconds=REPEATED_SECONDS)
    large_ones = asyncio.Semaphore(LARGE_AT_ONCE)
    responding = {
        path: _limit_large_requests(_create_responder(path, handler, ending, metrics, requests), large_ones)
        for path, handler in handlers.items()
    }
    if callers is not None:
        route_authenticated(application.router, responding, callers, metrics.strangers)
        return application
    for path, respond in responding.items():
        application.router.add_post(path, respond)
    return application


def _limit_large_requests(respond: Respond, large_ones: asyncio.Semaphore) -> Respond:
    """Wrap `respond`: the body of a large review is read only once a slot is free."""

    async def respond_in_turn(received: web.Request) -> web.Response:
        size = received.content_length
        if size is not None and size <= LARGE_BYTES:
            return await respond(received)
        async with large_ones:
            return await respond(received)

    return respond_in_turn


def _create_responder(
    path: str, handler: Handler, ending: asyncio.Event, metrics: Metrics, requests: FirstRequests
) -> Respond:
    answer_to, shape = (handler.answer, handler.shape) if isinstance(handler, Endpoint) else (handler, admission.WHOLE)

    async def respond(received: web.Request) -> web.Response:
        try:
            body = await read_body(received, LONGEST_REQUEST_BYTES, READ_SECONDS)
        except (web.HTTPRequestEntityTooLarge, web.HTTPRequestTimeout) as error:
            metrics.requests.labels(path, "unreadable").inc()
            log.warning("admission", webhook=path, decision="unreadable", error=error.text)
            raise
        began = time.perf_counter()
        try:
            request = admission.read(body, shape)
        except (ValueError, RecursionError) as error:
            metrics.requests.labels(path, "unreadable").inc()
            return web.Response(status=400, text=f"no AdmissionReview: {error}")
        del body
        is_looked_at = not request.is_large or shape.large is not None
        answering = answer_to(request) if is_looked_at else _answer_undecoded_object()
        request = _without_objects(request)  # the handler alone keeps the objects
        try:
            answer = await answering
        except Exception:  # failurePolicy makes the API server proceed; the error response triggers it
            metrics.requests.labels(path, "failed").inc()
            log.exception("admission", webhook=path, namespace=request.namespace, name=request.name)
            raise
        _record_answer(path, request, answer, metrics, requests)
        metrics.duration.labels(path).observe(time.perf_counter() - began)
        response = web.Response(body=admission.write(request, answer), content_type="application/json")
        if ending.is_set():  # API servers keep connections open, and would use them until the end
            response.force_close()
        return response

    return respond


def _without_objects(request: Request) -> Request:
    """Return the request without its objects, except the old object's uid."""
    if request.old_object is None:
        return msgspec.structs.replace(request, object=None)
    metadata = request.old_object.get("metadata")
    uid = metadata.get("uid") if isinstance(metadata, dict) else None
    return msgspec.structs.replace(request, object=None, old_object={"metadata": {"uid": uid}})


async def _answer_undecoded_object() -> Answer:
    return Answer("large", warnings=("cedana: not looked at: it is larger than any that is meant (shorten it)",))


def _record_answer(path: str, request: Request, answer: Answer, metrics: Metrics, requests: FirstRequests) -> None:
    metrics.requests.labels(path, answer.decision).inc()
    metrics.warnings.labels(path).inc(len(answer.warnings))
    if answer.decision == "not-ours":
        return
    refused = answer.refusal.message if answer.refusal is not None else None
    write_log = log.debug if _is_repeated(path, request, answer, requests) else log.info
    write_log(
        "admission",
        webhook=path,
        decision=answer.decision,
        namespace=request.namespace,
        name=request.name,
        warnings=answer.warnings,
        refused=refused,
    )


def _is_repeated(path: str, request: Request, answer: Answer, requests: FirstRequests) -> bool:
    """Whether this 429 was answered before: a held scheduler retries once a second."""
    if answer.refusal is None or answer.refusal.code != 429 or request.old_object is None:
        return False
    uid = request.old_object["metadata"].get("uid")
    return requests.seconds_since_first((path, uid, answer.decision)) > 0
