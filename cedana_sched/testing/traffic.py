"""Requests on their way to an API server: how many there were, what they wrote, and which of them fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, NamedTuple

from cedana_sched.kube.errors import ApiUnavailableError, NotServedError, error_of
from cedana_sched.kube.resources import Resource

LATE_TURNS = 200
"""Turns of the event loop after which all is done that waits for nothing else."""
REFUSALS: Final = (400, 401, 403, 404, 409, 422, 429, 500, 503, 504)
_READS = frozenset({"get", "list"})


class Write(NamedTuple):
    """A write that was done: `create`, `update`, `patch`, `apply` or `delete`, and what was sent."""

    verb: str
    resource: Resource
    name: str
    body: Any


class Traffic:
    """Counts requests, and makes those fail that a test names.

    Args:
        dice: decides which writes fail, as often as `fault_rate` says: with nothing done, or with the answer lost.
    """

    def __init__(self, dice: Random | None = None, fault_rate: float = 0.0) -> None:
        self.requests = 0
        self.attempts: Counter[tuple[str, Resource]] = Counter()
        """Writes that arrived, by verb and kind."""
        self.writes: list[Write] = []
        self.down = False
        """Whether no request is answered; open watches stay open."""
        self.fails: set[int] = set()
        """Numbers of requests, from 1, that fail with nothing done."""
        self.answers_lost: set[int] = set()
        """Numbers of requests that are done, and whose answers are lost."""
        self.refusing: dict[Resource, int] = {}
        """The status with which every write of a kind is refused."""
        self.gone_namespaces: dict[str, tuple[int, bytes]] = {}
        """Status and body of the answer to every create in a namespace."""
        self.late: set[Resource] = set()
        """Kinds whose lists are answered after `LATE_TURNS`."""
        self.fault_rate = fault_rate
        self._dice = dice or Random(0)  # noqa: S311 - no secret

    @asynccontextmanager
    async def request(self, verb: str, resource: Resource, namespace: str | None = None) -> AsyncIterator[None]:
        """Surrounds what a request does. Raises what the client does when the request or its answer is lost."""
        await self._delay_request(verb, resource)
        self.requests += 1
        number, is_lost = self.requests, False
        if self.down or number in self.fails:
            raise ApiUnavailableError("no answer", remedy="it is tried again")
        if verb not in _READS:
            self.attempts[verb, resource] += 1
            is_lost = self._inject_fault(f"{verb} {resource.plural}", self.refusing.get(resource))
        if namespace is not None and (answer := self.gone_namespaces.get(namespace)) is not None:
            raise error_of(f"{verb} {resource.plural}", *answer)
        yield
        if is_lost or number in self.answers_lost:
            raise ApiUnavailableError("the answer was lost")

    async def _delay_request(self, verb: str, resource: Resource) -> None:
        for _ in range(LATE_TURNS if verb == "list" and resource in self.late else 1):
            await asyncio.sleep(0)

    def _inject_fault(self, call: str, refusal: int | None) -> bool:
        """Return whether the answer is to be lost; raise what the client makes of a refusal."""
        if refusal is None:
            if self._dice.random() >= self.fault_rate:
                return False
            fate = self._dice.randrange(3)
            if fate == 0:
                raise ApiUnavailableError(f"{call}: the connection broke")
            if fate == 2:
                return True
            refusal = self._dice.choice(REFUSALS)
        try:
            raise error_of(call, refusal, b"refused by the test")
        except NotServedError as error:  # as the client does
            raise ApiUnavailableError(error.message, status=404) from error
