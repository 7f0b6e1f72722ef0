"""Authentication of callers by a secret first path segment, and optionally a client certificate.

Each path has a segment of its own, derived from a random secret of the installation, which is stored in a Secret. The
segments are part of the callers' configuration. A caller may disclose the path that it calls: that gives access to no
other path. All other requests get 404, and their bodies are not read.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client import Counter

SETTLE_SECONDS: Final = 5.0
"""Until all replicas have a new secret; before that, no configuration contains segments derived from it."""
FORMER_SECONDS: Final = 60.0
"""How long a replaced secret stays valid, if we write the callers' configuration: all have read it by then."""
SHORTEST_SECRET: Final = 22
"""Characters, 128 bits, for a secret that a user chose."""
_SECRET_BYTES: Final = 32

Respond = Callable[[web.Request], Awaitable[web.Response]]


def new_secret() -> str:
    """Generate a secret."""
    return secrets.token_hex(_SECRET_BYTES)


def secret_segment_of(secret: str, path: str) -> str:
    """Return the path's segment; it discloses neither the secret nor another path's segment."""
    return hmac.digest(secret.encode(), path.encode(), "sha256").hex()


class Callers:
    """Holds the current secret and recently replaced ones.

    Args:
        clock: monotonic seconds.
        certificate_names: permitted common names of client certificates; empty: no certificate is required.
        former_seconds: how long a replaced secret stays valid.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        certificate_names: frozenset[str] = frozenset(),
        former_seconds: float = FORMER_SECONDS,
    ) -> None:
        self._clock = clock
        self._former_seconds = former_seconds
        self._certificate_names = certificate_names
        self._secret = ""
        self._former: dict[str, float] = {}
        """Expiry of each replaced secret, by the clock."""
        self._settled_at = 0.0

    @property
    def has_secret(self) -> bool:
        """Whether there is a secret; before that no caller is authenticated."""
        return bool(self._secret)

    @property
    def has_reached_all_replicas(self) -> bool:
        """Whether the other replicas have it, too."""
        return self.has_secret and self._clock() >= self._settled_at

    def set_secret(self, secret: str) -> None:
        """Set the current secret."""
        if secret == self._secret:
            return
        if self._secret:
            self._former[self._secret] = self._clock() + self._former_seconds
            self._settled_at = self._clock() + SETTLE_SECONDS
        self._former.pop(secret, None)
        self._secret = secret

    def is_known(self, segment: str, path: str) -> bool:
        """Whether the segment is valid for the path; constant-time."""
        now, given = self._clock(), segment.encode(errors="replace")
        for gone in [one for one, until in self._former.items() if until <= now]:
            del self._former[gone]
        known = [secret_segment_of(one, path) for one in (self._secret, *self._former) if one]
        return any([hmac.compare_digest(one.encode(), given) for one in known])  # noqa: C419  # always compare all

    def has_caller_name(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a certificate, in the form of `ssl.SSLSocket.getpeercert`, is a caller's."""
        if not self._certificate_names:
            return True
        subject = (certificate or {}).get("subject", ())
        names = {value for group in subject for key, value in group if key == "commonName"}
        return bool(names & self._certificate_names)


def route_authenticated(
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
        router.add_post(f"/{{caller}}{path}", _authenticated_handler(derived_from or path, respond, callers, strangers))
    router.add_route("*", "/{path:.*}", _not_found_handler(strangers))


def _authenticated_handler(path: str, respond: Respond, callers: Callers, strangers: Counter) -> Respond:
    nothing = _not_found_handler(strangers)

    async def respond_to_known(received: web.Request) -> web.Response:
        certificate = received.transport.get_extra_info("peercert") if received.transport is not None else None
        is_known = callers.is_known(received.match_info["caller"], path)
        return await (respond if is_known and callers.has_caller_name(certificate) else nothing)(received)

    return respond_to_known


def _not_found_handler(strangers: Counter) -> Respond:
    async def respond_to_strangers(_: web.Request) -> web.Response:
        strangers.inc()
        response = web.Response(status=404)
        response.force_close()
        return response

    return respond_to_strangers
