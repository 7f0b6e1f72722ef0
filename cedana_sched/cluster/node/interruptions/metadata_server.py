"""Requests to a provider's metadata server, which is input of another party: every answer is bounded.

Redirects are not followed and proxies are not used: nothing but the configured address receives a request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import aiohttp
import msgspec

from cedana_sched.model.errors import RetryableError

LINK_LOCAL_URL: Final = "http://169.254.169.254"
"""Where AWS, GCP and Azure serve their metadata."""
REQUEST_SECONDS: Final = 5.0
LONGEST_ANSWER: Final = 64 << 10
"""Bytes; a provider's document of all events has a few hundred for each."""

_NO_COOKIES: Final = aiohttp.DummyCookieJar

T = TypeVar("T")


class MetadataError(RetryableError):
    """The metadata server does not answer what its provider documents."""


class MetadataUnavailableError(MetadataError):
    """There is no complete answer, or the server is overloaded: it may be any provider's."""


class MetadataAnswer(msgspec.Struct, frozen=True):
    """One complete answer; names of `headers` are matched without regard to case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    def require(self, *statuses: int) -> None:
        """Raise MetadataError for any other status, MetadataUnavailableError if it says to retry."""
        if self.status not in statuses:
            kind = MetadataUnavailableError if self.status == 429 or self.status >= 500 else MetadataError
            raise kind(f"{self.url} answers {self.status}: {_excerpt(self.body)}")

    def decode(self, kind: type[T]) -> T:
        """Decode the JSON body.

        Raises:
            MetadataError: it is no JSON of this kind.
        """
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (ValueError, RecursionError) as error:
            raise MetadataError(f"{self.url} answers no {kind.__name__}: {error}: {_excerpt(self.body)}") from error

    def text(self) -> str:
        """Return the body as text, without surrounding spaces."""
        return self.body.decode(errors="replace").strip()


class MetadataServer:
    """The metadata server at one address; see `open`."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url.rstrip("/")
        self._session = session

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[MetadataServer]:
        """Use the server at this URL inside the block."""
        async with aiohttp.ClientSession(cookie_jar=_NO_COOKIES(), trust_env=False) as session:
            yield cls(url, session)

    async def request(
        self,
        path: str,
        headers: Mapping[str, str],
        *,
        method: str = "GET",
        json: Any = None,
        seconds: float = REQUEST_SECONDS,
    ) -> MetadataAnswer:
        """Return the answer, whatever its status.

        Args:
            path: with the query.
            headers: the provider's own.
            method: of HTTP.
            json: the body; None: no body.
            seconds: limit of the whole exchange.

        Raises:
            MetadataUnavailableError: there is no complete answer in time.
            MetadataError: it is too long.
        """
        url = self._url + path
        timeout = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(
                method, url, headers=headers, json=json, timeout=timeout, allow_redirects=False
            ) as answer:
                body = await _read_body(answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError
            problem = str(error) or f"no answer within {seconds:g} s"
            raise MetadataUnavailableError(f"metadata server {url} is not reachable: {problem}") from error
        if len(body) > LONGEST_ANSWER:
            raise MetadataError(f"{url} answers more than {LONGEST_ANSWER} bytes")
        return MetadataAnswer(url, answer.status, answer.headers, body)


async def _read_body(answer: aiohttp.ClientResponse) -> bytes:
    """Return at most one byte more than is accepted."""
    body = b""
    while len(body) <= LONGEST_ANSWER and (more := await answer.content.read(LONGEST_ANSWER + 1 - len(body))):
        body += more
    return body


def _excerpt(body: bytes) -> str:
    return repr(body[:100].decode(errors="replace"))
