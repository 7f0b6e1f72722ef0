"""Paths that are there for known callers alone: everybody else is told that there is nothing, and not read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import Counter

from cedana_sched.service.callers import Callers

Respond = Callable[[web.Request], Awaitable[web.Response]]


def route_known(
    router: web.UrlDispatcher,
    responding: Mapping[str, Respond],
    callers: Callers,
    strangers: Counter,
    *,
    derived_from: str | None = None,
) -> None:
    """Answer POSTs behind a segment that only callers know.

    Args:
        router: of an application that answers nothing else.
        responding: who answers a known caller, by the path behind the segment.
        callers: know who is known.
        strangers: counts everybody else.
        derived_from: the path of which all have the segment; None: each has that of its own.
    """
    for path, respond in responding.items():
        router.add_post(f"/{{caller}}{path}", _of_known(derived_from or path, respond, callers, strangers))
    router.add_route("*", "/{path:.*}", _of_nobody(strangers))


def _of_known(path: str, respond: Respond, callers: Callers, strangers: Counter) -> Respond:
    nothing = _of_nobody(strangers)

    async def respond_to_known(received: web.Request) -> web.Response:
        certificate = received.transport.get_extra_info("peercert") if received.transport is not None else None
        is_known = callers.is_known(received.match_info["caller"], path)
        return await (respond if is_known and callers.has_name(certificate) else nothing)(received)

    return respond_to_known


def _of_nobody(strangers: Counter) -> Respond:
    async def respond_to_strangers(_: web.Request) -> web.Response:
        strangers.inc()
        response = web.Response(status=404)
        response.force_close()
        return response

    return respond_to_strangers
