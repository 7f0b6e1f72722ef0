"""The server that Volcano's extender plugin calls, over plain HTTP.

The scheduler waits for every answer, one after the other, and takes anything but a 200 with a body that it can read for
"nobody may be evicted": it fails closed. So what cannot be read is a 400, what is too long a 413, a defect a 500, and
as long as not everything is known it is a 503; each is counted.

Whoever does not know the secret part of the address is told that there is nothing.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
import structlog
from aiohttp import web

from cedana_sched.service.callers import Callers
from cedana_sched.service.strangers import Respond, route_known
from cedana_sched_volcano.extender.address import DERIVED_FROM
from cedana_sched_volcano.extender.answering import Answer, answer
from cedana_sched_volcano.extender.claims import Claims
from cedana_sched_volcano.extender.holder import Holder, Way
from cedana_sched_volcano.extender.metrics import Metrics

log = structlog.get_logger(__name__)

PATHS: Final[dict[str, Way]] = {"/preemptable": "preempt", "/reclaimable": "reclaim"}
"""The path is `extender.preemptableVerb` or `extender.reclaimableVerb` of the scheduler's configuration, behind the
segment in its `extender.urlPrefix`; nothing in the body says which it is."""
LONGEST_REQUEST_BYTES: Final = 64 << 20
"""Every pod of a node, whole, and the preemptor's."""


def extender_application(
    holder: Holder, claims: Claims, ending: asyncio.Event, metrics: Metrics, callers: Callers
) -> web.Application:
    """Answers the scheduler. Once `ending` is set, its connection is closed with the next answer."""
    application = web.Application(client_max_size=LONGEST_REQUEST_BYTES)
    responding = {path: _endpoint(way, holder, claims, ending, metrics) for path, way in PATHS.items()}
    route_known(application.router, responding, callers, metrics.strangers, derived_from=DERIVED_FROM)
    return application


def _endpoint(way: Way, holder: Holder, claims: Claims, ending: asyncio.Event, metrics: Metrics) -> Respond:
    async def respond(received: web.Request) -> web.Response:
        if not holder.synced:  # nobody would be known to be protected
            metrics.calls.labels(way, "not-ready").inc()
            return web.Response(status=503, text="what is protected is still being listed")
        try:
            body = await received.read()
        except web.HTTPRequestEntityTooLarge as error:
            _tell_unreadable(way, str(error.text), metrics)
            raise
        began = time.perf_counter()
        try:
            answered = answer(way, body, holder, claims)
        except msgspec.DecodeError as error:
            _tell_unreadable(way, str(error), metrics)
            return web.Response(status=400, text=f"no question of Volcano's extender plugin: {error}")
        except Exception:  # the scheduler evicts nobody then, and is told that something is wrong
            metrics.calls.labels(way, "failed").inc()
            log.exception("extender", action=way)
            raise
        _tell(way, answered, metrics)
        metrics.duration.labels(way).observe(time.perf_counter() - began)
        response = web.Response(body=answered.body, content_type="application/json")
        if ending.is_set():  # the scheduler keeps its connection, and would come to us to the last moment
            response.force_close()
        return response

    return respond


def _tell_unreadable(way: Way, why: str, metrics: Metrics) -> None:
    metrics.calls.labels(way, "unreadable").inc()
    log.warning("extender", action=way, decision="unreadable", why=why)


def _tell(way: Way, answered: Answer, metrics: Metrics) -> None:
    metrics.calls.labels(way, answered.word).inc()
    metrics.evictees.labels(way, "true").inc(answered.victims)
    metrics.evictees.labels(way, "false").inc(answered.evictees - answered.victims)
    tell = log.info if answered.word in {"offered", "given-up"} else log.debug
    tell(
        "extender",
        action=way,
        decision=answered.word,
        preemptor=answered.preemptor,
        node=answered.node,
        evictees=answered.evictees,
        victims=answered.victims,
        asked=answered.asked,
    )
