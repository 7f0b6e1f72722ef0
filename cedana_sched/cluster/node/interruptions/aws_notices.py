"""Notices of AWS for the node's own instance, by IMDSv2.

Source: Amazon EC2 User Guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations", "Use the
Instance Metadata Service". A path without a notice answers 404. There is no watch: AWS recommends to poll every 5 s,
and aws-node-termination-handler polls every 2 s, because each second of the two minutes of a notice counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from cedana_sched.cluster.node.interruptions.metadata_server import MetadataAnswer, MetadataError, MetadataServer
from cedana_sched.cluster.node.interruptions.notice_watch import NoticeWatch, Now
from cedana_sched.model.objects.node_interruption import InterruptionKind, InterruptionSource, NodeInterruption

POLL_SECONDS: Final = 2.0
TOKEN_PATH: Final = "/latest/api/token"  # noqa: S105  # a path
INSTANCE_ACTION_PATH: Final = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH: Final = "/latest/meta-data/events/recommendations/rebalance"
LIFETIME_HEADER: Final = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER: Final = "X-aws-ec2-metadata-token"  # noqa: S105  # a header's name
TOKEN_SECONDS: Final = 21_600
"""The longest lifetime that IMDSv2 grants."""
RENEWAL_SECONDS: Final = 60.0
"""How long before its end a token is replaced."""


class _InstanceAction(msgspec.Struct, frozen=True):
    """`action` (stop, hibernate, terminate) does not matter: the node ends in any case."""

    time: str


class _Rebalance(msgspec.Struct, frozen=True, rename="camel"):
    notice_time: str


class ImdsV2:
    """The instance's metadata, with a token that is requested when needed and renewed before it expires.

    Args:
        server: the metadata server.
        clock: monotonic seconds.
    """

    def __init__(self, server: MetadataServer, clock: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self._clock = clock
        self._token = ""
        self._renew_at = 0.0
        self._requesting = asyncio.Lock()

    async def get(self, path: str) -> MetadataAnswer:
        """Return the answer for a path, 404 included.

        Raises:
            MetadataError: there is none; or the server grants no token, or refuses a new one.
        """
        token = await self._valid_token()
        answer = await self._server.request(path, {TOKEN_HEADER: token})
        if answer.status == 401:  # the server has dropped the token before its time
            if self._token == token:
                self._token = ""
            answer = await self._server.request(path, {TOKEN_HEADER: await self._valid_token()})
        answer.require(200, 404)
        return answer

    async def _valid_token(self) -> str:
        async with self._requesting:  # one request serves all that wait
            if not self._token or self._clock() >= self._renew_at:
                self._token = await request_token(self._server)
                self._renew_at = self._clock() + TOKEN_SECONDS - RENEWAL_SECONDS
            return self._token


async def request_token(server: MetadataServer) -> str:
    """Request a token.

    Raises:
        MetadataError: the server grants none, so that it is none of AWS, or the instance's metadata is disabled.
    """
    answer = await server.request(TOKEN_PATH, {LIFETIME_HEADER: str(TOKEN_SECONDS)}, method="PUT")
    answer.require(200)
    token = answer.text()
    if not token.isascii() or not token.isprintable() or not token or LIFETIME_HEADER not in answer.headers:
        raise MetadataError(f"{answer.url} answers no token of IMDSv2")
    return token


def aws_watches(server: MetadataServer, now: Now) -> tuple[NoticeWatch, ...]:
    """Return what to poll of an instance.

    Args:
        server: the metadata server.
        now: the current time.
    """
    imds = ImdsV2(server)

    async def read_instance_action() -> NodeInterruption | None:
        return parse_instance_action(await imds.get(INSTANCE_ACTION_PATH), now())

    async def read_rebalance() -> NodeInterruption | None:
        return parse_rebalance(await imds.get(REBALANCE_PATH), now())

    return (
        NoticeWatch("spot interruption", read_instance_action, POLL_SECONDS),
        NoticeWatch("rebalance recommendation", read_rebalance, POLL_SECONDS),
    )


def parse_instance_action(answer: MetadataAnswer, now: datetime) -> NodeInterruption | None:
    """Return the notice of an answer for `INSTANCE_ACTION_PATH`: the instance is stopped, hibernated or terminated.

    Raises:
        MetadataError: the answer is not what AWS documents.
    """
    if answer.status == 404:
        return None
    ends_at = _parse_time(answer, answer.decode(_InstanceAction).time)
    return NodeInterruption.from_times(InterruptionSource.AWS, InterruptionKind.TERMINATION, ends_at, now)


def parse_rebalance(answer: MetadataAnswer, now: datetime) -> NodeInterruption | None:
    """Return the notice of an answer for `REBALANCE_PATH`: an interruption is likelier than usual, at no stated time.

    Raises:
        MetadataError: the answer is not what AWS documents.
    """
    if answer.status == 404:
        return None
    _parse_time(answer, answer.decode(_Rebalance).notice_time)
    return NodeInterruption.from_times(InterruptionSource.AWS, InterruptionKind.RISK, None, now)


def _parse_time(answer: MetadataAnswer, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, ArithmeticError) as error:
        raise MetadataError(f"{answer.url} answers no time: {text[:64]!r}") from error
