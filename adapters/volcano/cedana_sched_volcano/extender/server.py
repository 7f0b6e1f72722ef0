"""The server that Volcano's extender plugin calls, over plain HTTP.

The scheduler waits for every answer: one call at a time or, if its action `preempt` has the argument
`enableTopologyAwarePreemption`, as many at once as it has workers for that (`topologyAwarePreemptWorkerNum`, 16). It
treats anything but a readable 200 as "no pod may be evicted": it fails closed. So unreadable calls get 400, too long
ones 413, too slow ones 408, a defect 500, and calls before sync or above the limits 503; each is counted. None of them
delays the scheduler: a call above the limits is rejected at once, before its body is read.

Callers without the secret part of the address get 404.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
import structlog
from aiohttp import web

from cedana_sched.component.bodies import read_body
from cedana_sched.component.callers import Callers, Respond, route_authenticated
from cedana_sched_volcano.extender.address_secret import DERIVED_FROM
from cedana_sched_volcano.extender.answering import Answer, answer_extender_call
from cedana_sched_volcano.extender.call_limit import CallLimit
from cedana_sched_volcano.extender.claims import Claims
from cedana_sched_volcano.extender.metrics import Metrics
from cedana_sched_volcano.extender.pod_states_interface import ProtectedPodStates, Way

log = structlog.get_logger(__name__)

PATHS: Final[dict[str, Way]] = {"/preemptable": "preempt", "/reclaimable": "reclaim"}
"""The path is `extender.preemptableVerb` or `extender.reclaimableVerb` of the scheduler's configuration, behind the
segment in its `extender.urlPrefix`; the body does not contain the action."""
LONGEST_REQUEST_BYTES: Final = 64 << 20
"""Every pod of a node, whole, and the preemptor's."""
AT_ONCE: Final = 64
"""Calls read or answered at once: all workers of some schedulers, and calls that they have abandoned."""
BYTES_AT_ONCE: Final = 192 << 20
"""Of all these together; a call without Content-Length counts as the longest."""


def extender_application(
    pod_states: ProtectedPodStates,
    claims: Claims,
    ending: asyncio.Event,
    metrics: Metrics,
    callers: Callers,
    *,
    timeout_seconds: float,
) -> web.Application:
    """Build the application that answers the scheduler. Once `ending` is set, responses close its connection.

    Args:
        pod_states: state of pods.
        claims: state kept across scheduling cycles.
        ending: set at shutdown, when other replicas should be called.
        metrics: counts calls.
        callers: authenticate callers.
        timeout_seconds: how long the scheduler waits; a call with an incomplete body is abandoned then.
    """
    application, call_limit = web.Application(), CallLimit(AT_ONCE, BYTES_AT_ONCE)
    responding = {}
    for path, way in PATHS.items():
        respond = _build_extender_handler(way, pod_states, claims, ending, metrics, timeout_seconds)
        responding[path] = _with_call_limit(way, respond, call_limit, metrics)
    route_authenticated(application.router, responding, callers, metrics.strangers, derived_from=DERIVED_FROM)
    return application


def _with_call_limit(way: Way, respond: Respond, call_limit: CallLimit, metrics: Metrics) -> Respond:
    """Wrap `respond` with admission by the limits."""

    async def respond_where_there_is_room(received: web.Request) -> web.Response:
        with call_limit.admit_call(_bytes_to_read(received)) as is_taken:
            if is_taken:
                return await respond(received)
        metrics.calls.labels(way, "busy").inc()
        response = web.Response(status=503, text="too many calls are being answered")
        response.force_close()  # the next connection may reach another replica
        return response

    return respond_where_there_is_room


def _bytes_to_read(received: web.Request) -> int:
    """Return the upper bound of the body."""
    length = received.content_length
    if length is None:
        return LONGEST_REQUEST_BYTES
    return length if length <= LONGEST_REQUEST_BYTES else 0  # it is refused


def _build_extender_handler(
    way: Way,
    pod_states: ProtectedPodStates,
    claims: Claims,
    ending: asyncio.Event,
    metrics: Metrics,
    timeout_seconds: float,
) -> Respond:
    async def respond(received: web.Request) -> web.Response:
        if not pod_states.is_synced:  # protected pods are unknown yet
            metrics.calls.labels(way, "not-ready").inc()
            return web.Response(status=503, text="what is protected is still being listed")
        try:
            body = await read_body(received, LONGEST_REQUEST_BYTES, timeout_seconds)
        except (web.HTTPRequestEntityTooLarge, web.HTTPRequestTimeout) as error:
            _record_unreadable_call(way, str(error.text), metrics)
            raise
        began = time.perf_counter()
        try:
            answered = answer_extender_call(way, body, pod_states, claims)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _record_unreadable_call(way, str(error), metrics)
            return web.Response(status=400, text=f"no question of Volcano's extender plugin: {error}")
        except Exception:  # the scheduler evicts nothing then, and logs the error
            metrics.calls.labels(way, "failed").inc()
            log.exception("extender", action=way)
            raise
        _record_answer(way, answered, metrics)
        metrics.duration.labels(way).observe(time.perf_counter() - began)
        response = web.Response(body=answered.body, content_type="application/json")
        if ending.is_set():  # the scheduler keeps its connection, and would use it until the end
            response.force_close()
        return response

    return respond


def _record_unreadable_call(way: Way, why: str, metrics: Metrics) -> None:
    metrics.calls.labels(way, "unreadable").inc()
    log.warning("extender", action=way, decision="unreadable", reason=why)


def _record_answer(way: Way, answered: Answer, metrics: Metrics) -> None:
    metrics.calls.labels(way, answered.word).inc()
    metrics.evictees.labels(way, "true").inc(answered.victims)
    metrics.evictees.labels(way, "false").inc(answered.evictees - answered.victims)
    write_log = log.info if answered.word in {"offered", "given-up"} else log.debug
    write_log(
        "extender",
        action=way,
        decision=answered.word,
        preemptor=answered.preemptor,
        node=answered.node,
        evictees=answered.evictees,
        victims=answered.victims,
        asked=answered.requested,
    )
