"""Routes for authenticated callers only: all other requests get 404, and their bodies are not read."""

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
    """Route POSTs behind a secret path segment.

    Args:
        router: of an application without other routes.
        responding: handlers of authenticated requests, by the path behind the segment.
        callers: authenticate requests.
        strangers: counts all other requests.
        derived_from: path whose segment all paths share; None: each path has its own.
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
