"""Credentials for Armada, as metadata of each call; secrets are read from their files each time."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import aiohttp
import grpc
import msgspec

from cedana_sched.model.errors import UsageError
from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaUnavailableError
from cedana_sched_armada.settings import (
    AuthSettings,
    BasicSettings,
    OidcSettings,
    TlsSettings,
    TokenSettings,
)

REQUEST_SECONDS = 30.0
EXPIRY_MARGIN_SECONDS = 30.0
LONGEST_ANSWER = 1 << 20
"""Maximum bytes read of a provider's response."""

Metadata = tuple[tuple[str, str], ...]


class Credentials(Protocol):
    """Provides call metadata for authentication."""

    async def metadata(self) -> Metadata:
        """Return the metadata for one call."""
        ...

    def on_rejected(self) -> None:
        """Invalidate cached credentials after Armada rejected them."""
        ...


class Anonymous:
    """No authentication."""

    async def metadata(self) -> Metadata:
        return ()

    def on_rejected(self) -> None: ...


class Basic:
    """User name and password."""

    def __init__(self, settings: BasicSettings) -> None:
        self._settings = settings

    async def metadata(self) -> Metadata:
        password = _read_secret_file("armada.auth.basic.passwordFile", self._settings.password_file)
        return (("authorization", f"basic {_encode_basic_credentials(self._settings.username, password)}"),)

    def on_rejected(self) -> None: ...


class BearerToken:
    """A token in a file that another program refreshes."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings

    async def metadata(self) -> Metadata:
        field, path = "armada.auth.token.file", self._settings.file
        token = _read_secret_file(field, path)
        if not _is_sendable(token):
            raise UsageError(field, str(path), "holds no token", remedy="write one line of ASCII")
        return (("authorization", f"Bearer {token}"),)

    def on_rejected(self) -> None: ...


class _ProviderMetadata(msgspec.Struct, frozen=True):
    token_endpoint: str


class _TokenResponse(msgspec.Struct, frozen=True):
    access_token: str
    expires_in: float = 60.0


class ClientCredentials:
    """A token of an OpenID provider, cached until shortly before it expires."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._token = ""
        self._until = 0.0
        self._renewal = asyncio.Lock()

    async def metadata(self) -> Metadata:
        async with self._renewal:  # thousands of streams start at once
            if self._clock() >= self._until:
                token = await self._request_token()
                self._token = token.access_token
                self._until = self._clock() + max(token.expires_in - EXPIRY_MARGIN_SECONDS, 1.0)
        return (("authorization", f"Bearer {self._token}"),)

    def on_rejected(self) -> None:
        self._until = 0.0

    async def _request_token(self) -> _TokenResponse:
        settings = self._settings
        secret = _read_secret_file("armada.auth.oidc.clientSecretFile", settings.client_secret_file)
        about = f"{settings.provider_url.rstrip('/')}/.well-known/openid-configuration"
        form = {"grant_type": "client_credentials", "scope": " ".join(settings.scopes)}
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as session:
                async with session.get(about) as answer:
                    provider = msgspec.json.decode(await _read_response_body(answer), type=_ProviderMetadata)
                headers = {"Authorization": f"Basic {_encode_basic_credentials(settings.client_id, secret)}"}
                async with session.post(provider.token_endpoint, data=form, headers=headers) as answer:
                    token = msgspec.json.decode(await _read_response_body(answer), type=_TokenResponse)
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            message = f"no token of {settings.provider_url}: {error!r:.500}"
            raise ArmadaUnavailableError(message, remedy="it is tried again") from error
        if not _is_sendable(token.access_token):
            message = f"no token of {settings.provider_url}: what it gives is no line of ASCII"
            raise ArmadaUnavailableError(message, remedy="see the provider; it is tried again")
        return token


def _is_sendable(token: str) -> bool:
    """Whether gRPC can send it."""
    return token.isascii() and token.isprintable()


async def _read_response_body(answer: aiohttp.ClientResponse) -> bytes:
    body = await answer.content.read(LONGEST_ANSWER)
    while len(body) < LONGEST_ANSWER and (more := await answer.content.read(LONGEST_ANSWER - len(body))):
        body += more
    if 400 <= answer.status < 500:
        message = f"{answer.url} answers {answer.status}: {body[:200].decode(errors='replace')}"
        raise ArmadaDeniedError(message, remedy="see armada.auth.oidc")
    answer.raise_for_status()
    return body


def credentials_of(settings: AuthSettings) -> Credentials:
    """Return the configured credentials."""
    if settings.basic is not None:
        return Basic(settings.basic)
    if settings.token is not None:
        return BearerToken(settings.token)
    if settings.oidc is not None:
        return ClientCredentials(settings.oidc)
    return Anonymous()


def channel_credentials(settings: TlsSettings) -> grpc.ChannelCredentials:
    """Build TLS channel credentials.

    Raises:
        UsageError: a file cannot be read.
    """
    return grpc.ssl_channel_credentials(
        root_certificates=_read_pem_file("armada.tls.ca", settings.ca),
        private_key=_read_pem_file("armada.tls.key", settings.key),
        certificate_chain=_read_pem_file("armada.tls.certificate", settings.certificate),
    )


def _encode_basic_credentials(name: str, secret: str) -> str:
    return base64.b64encode(f"{name}:{secret}".encode()).decode()


def _read_pem_file(field: str, path: Path | None) -> bytes | None:
    return None if path is None else _read_file(field, path)


def _read_secret_file(field: str, path: Path) -> str:
    try:
        secret = _read_file(field, path).decode().strip()
    except UnicodeDecodeError as error:
        raise UsageError(field, str(path), "is no text", remedy="write it in UTF-8") from error
    if not secret:
        raise UsageError(field, str(path), "is empty", remedy="see whether it is filled")
    return secret


def _read_file(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise UsageError(field, str(path), problem, remedy="see whether it is mounted") from error
