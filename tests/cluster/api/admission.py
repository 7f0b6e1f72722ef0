"""Whether admission is in force yet: API servers learn of webhooks and policies a moment after they were written.

Webhooks, in turn, learn of namespaces a moment after these were made. Nothing that can be watched tells of it, so it is
tried, without effect, until it is so.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import tenacity
from kubernetes_asyncio.client import ApiException

from tests.cluster.api.client import Api, Object
from tests.cluster.errors import ClusterError

_WITHIN = 60
_FORBIDDEN, _NOT_FOUND, _EXISTS, _FAILED = 403, 404, 409, 500


class _NotYetError(Exception):
    pass


async def webhooks_answer(api: Api, question: Object, namespace: str | None = None) -> None:
    """Return when the API server gets an answer from the webhooks that see this object being created.

    A ready pod is not enough: the API server hears of its address a moment later, and a webhook looks for the object's
    namespace in a cache of its own.

    Args:
        api: the cluster.
        question: an object that its webhooks accept; it is not created.
        namespace: of the object, where it does not say so itself.

    Raises:
        ClusterError: they do not answer.
    """
    resource = await api.resource(question["apiVersion"], question["kind"])
    path = resource.path(question["metadata"].get("namespace", namespace))

    async def ask() -> None:
        try:
            await api.call("POST", path, body=question, query={"dryRun": "All"})
        except ApiException as error:
            said = str(json.loads(error.body or b"{}").get("message", ""))
            if error.status == _NOT_FOUND or (error.status == _FAILED and "failed calling webhook" in said):
                raise _NotYetError(said) from None
            if error.status not in {_FORBIDDEN, _EXISTS}:  # both are decided after the webhooks
                raise

    await _ask_until_it_is_so(
        ask, f"the webhooks of {question['kind']} do not answer", remedy="see the log of the pods behind their Service"
    )


async def wait_until_created_as(
    api: Api, question: Object, namespace: str, is_so: Callable[[Object], bool], what: str
) -> None:
    """Try to create an object, without effect, until it would become what is wanted.

    Args:
        api: the cluster.
        question: an object that is allowed.
        namespace: of the object.
        is_so: whether this is what is wanted.
        what: says it.

    Raises:
        ClusterError: it never would.
    """
    path = (await api.resource(question["apiVersion"], question["kind"])).path(namespace)

    async def ask() -> None:
        if not is_so(await api.call("POST", path, body=question, query={"dryRun": "All"})):
            raise _NotYetError("it is not so")

    await _ask_until_it_is_so(ask, what, remedy="see the logs of the API server and of its webhooks")


async def wait_until_refused(attempt: Callable[[], Awaitable[object]], message: str) -> None:
    """Try what a policy forbids, without effect, until it is refused.

    Args:
        attempt: a dry run with kubectl.
        message: in the policy's answer; other refusals do not count.

    Raises:
        ClusterError: it was never refused.
    """

    async def ask() -> None:
        try:
            await attempt()
        except ClusterError as error:
            if message in str(error):
                return
            raise _NotYetError(str(error)) from None
        raise _NotYetError("it is allowed")

    await _ask_until_it_is_so(
        ask, f"nothing is refused with {message!r}", remedy="see whether the policy has its binding"
    )


async def wait_until_allowed(attempt: Callable[[], Awaitable[object]]) -> None:
    """Try what a policy has forbidden, without effect, until it is allowed.

    Args:
        attempt: a dry run with kubectl.

    Raises:
        ClusterError: it never was.
    """

    async def ask() -> None:
        try:
            await attempt()
        except ClusterError as error:
            raise _NotYetError(str(error)) from None

    await _ask_until_it_is_so(ask, "what should be allowed is refused", remedy="see which policy refuses it")


async def _ask_until_it_is_so(ask: Callable[[], Awaitable[None]], problem: str, *, remedy: str) -> None:
    again = tenacity.AsyncRetrying(
        wait=tenacity.wait_exponential(multiplier=0.05, max=1),
        stop=tenacity.stop_after_delay(_WITHIN),
        retry=tenacity.retry_if_exception_type(_NotYetError),
        reraise=True,
    )
    try:
        await again(ask)
    except _NotYetError as error:
        raise ClusterError(f"{problem}: {error}", remedy=remedy) from None
