"""HTTPS endpoint that issues credentials to agents; protocol: `cedana_sched/store/credential_client.py`.

Stateless, so any replica answers, leader or not, immediately after a restart.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

import msgspec
import structlog
from aiohttp import web

from cedana_sched.cluster.coordinator.credentials.authorization_rules import CredentialsRefused
from cedana_sched.cluster.coordinator.credentials.metrics import CredentialMetrics
from cedana_sched.component.bearer import bearer_token
from cedana_sched.kube.errors import ApiError
from cedana_sched.model.errors import CedanaSchedError, StoreError, StoreUnavailableError, UsageError
from cedana_sched.store.credential_client import CredentialRefusal, CredentialRequest
from cedana_sched.store.credential_renewal import SessionCredentials

log = structlog.get_logger(__name__)

PATH: Final = "/credentials"
LONGEST_REQUEST_BYTES: Final = 4096
LOGGED_AGAIN_SECONDS: Final = 60.0
"""A refusal of the same namespace and reason is logged once per interval, because refused agents retry."""
_MOST_LOGGED: Final = 1024

Decide = Callable[[str, CredentialRequest], Awaitable[str]]
"""Authorizes a request: returns the node of the token's owner, or raises `CredentialsRefused`."""
Begin = Callable[[CredentialRequest, str], Awaitable[SessionCredentials]]
"""Issues the requested credentials to this node."""


class CredentialEndpoint:
    """Answers agents.

    Args:
        decide: see `Decide`.
        begin: see `Begin`.
        metrics: counts answers.
        clock: monotonic seconds.
    """

    def __init__(
        self, decide: Decide, begin: Begin, metrics: CredentialMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._decide = decide
        self._begin = begin
        self._metrics = metrics
        self._clock = clock
        self._logged_at: dict[tuple[str, str], float] = {}
        self.web = web.Application(client_max_size=LONGEST_REQUEST_BYTES)
        self.web.router.add_post(PATH, self._respond)

    async def _respond(self, received: web.Request) -> web.Response:
        wanted = CredentialRequest("")
        try:
            wanted = _decode_request(await received.read())
            node = await self._decide(bearer_token(received), wanted)
            credentials = await self._begin(wanted, node)
        except CredentialsRefused as refused:
            self._log_refusal(wanted.namespace, refused.why)
            return self._build_refusal_response(refused.status, refused.why)
        except (ApiError, StoreError, UsageError) as error:
            log.warning("credentials not given", namespace=wanted.namespace, error=str(error))
            is_ours = isinstance(error, ApiError | StoreUnavailableError)
            status = HTTPStatus.SERVICE_UNAVAILABLE if is_ours else HTTPStatus.BAD_GATEWAY
            return self._build_refusal_response(status, _public_error_text(error))
        log.info(
            "credentials given",
            namespace=wanted.namespace,
            node=node,
            seconds=credentials.seconds,
            collecting=wanted.collecting,
        )
        self._metrics.answers.labels(HTTPStatus.OK.value).inc()
        headers = {"Cache-Control": "no-store"}
        body = msgspec.json.encode(credentials)
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _build_refusal_response(self, status: HTTPStatus, why: str) -> web.Response:
        self._metrics.answers.labels(status.value).inc()
        body = msgspec.json.encode(CredentialRefusal(why))
        return web.Response(status=status, body=body, content_type="application/json")

    def _log_refusal(self, namespace: str, why: str) -> None:
        now = self._clock()
        if now - self._logged_at.get((namespace, why), now - LOGGED_AGAIN_SECONDS) < LOGGED_AGAIN_SECONDS:
            return
        if len(self._logged_at) >= _MOST_LOGGED:
            self._logged_at.clear()
        self._logged_at[namespace, why] = now
        log.warning("credentials refused", namespace=namespace[:LONGEST_REQUEST_BYTES], reason=why)


def _decode_request(body: bytes) -> CredentialRequest:
    """Decode a request.

    Raises:
        Refused: it is malformed.
    """
    try:
        return msgspec.json.decode(body, type=CredentialRequest)
    except (ValueError, RecursionError) as error:
        raise CredentialsRefused(HTTPStatus.BAD_REQUEST, f"the request cannot be read: {error}") from error


def _public_error_text(error: CedanaSchedError) -> str:
    """Return the error for the agent; the store's own message is only logged."""
    return f"{type(error).__name__.removesuffix('Error')}: see the coordinator's log"
