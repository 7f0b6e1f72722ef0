"""Waits for a state of the cluster, through watches."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from tests.cluster.api.client import Api, Object
from tests.cluster.errors import ClusterError
from tests.cluster.patience import patient

Condition = Callable[[Object], bool]


class WaitedInVainError(ClusterError):
    """What was waited for did not come; the message shows the last state seen."""

    def __init__(self, what: str) -> None:
        super().__init__(what, remedy="the events and logs of that time tell why")


def has_condition(kind: str, status: str = "True", *, reason: str | None = None) -> Condition:
    """Whether an object's status has a condition of this type."""

    def check(body: Object) -> bool:
        return any(
            condition["type"] == kind
            and condition["status"] == status
            and (reason is None or condition.get("reason") == reason)
            for condition in body.get("status", {}).get("conditions") or ()  # a new definition says null
        )

    return check


def is_gone(body: Object) -> bool:
    """Whether the object was deleted; the only condition that sees an absent object."""
    return not body


async def wait_for(
    api: Api,
    api_version: str,
    kind: str,
    name: str,
    condition: Condition,
    *,
    namespace: str | None = None,
    within: float = 60,
) -> Object:
    """Wait until one object satisfies a condition, and return it as it was then.

    Args:
        api: the cluster.
        api_version: of the object.
        kind: of the object.
        name: of the object; it need not exist yet.
        condition: told the object, or an empty dictionary when it was deleted.
        namespace: of the object.
        within: seconds.

    Raises:
        WaitedInVainError: it did not happen in time.
    """
    last: Object = {}
    within = patient(within)
    try:
        async with (
            asyncio.timeout(within),
            aclosing(_states(api, api_version, kind, name, namespace)) as states,
        ):
            async for last in states:
                if (last or condition is is_gone) and condition(last):
                    return last
    except TimeoutError as error:
        shown = json.dumps({"metadata": {"name": name}, **last.get("status", {})}, indent=1) if last else "absent"
        wanted = getattr(condition, "__qualname__", repr(condition))
        raise WaitedInVainError(f"{kind} {name}: {wanted} not seen within {within} s; last: {shown}") from error
    raise AssertionError("a watch never ends")


async def _states(
    api: Api, api_version: str, kind: str, name: str, namespace: str | None
) -> AsyncGenerator[Object, None]:
    """The object as it is, empty where it is absent, and again after every change."""
    selector = f"metadata.name={name}"
    async with aclosing(api.watch(api_version, kind, namespace, field_selector=selector)) as events:
        async for event in events:
            if event.type == "LIST":
                yield next(iter(event.object["items"]), {})
            else:
                yield {} if event.type == "DELETED" else event.object


async def wait_for_all(
    api: Api,
    api_version: str,
    kind: str,
    condition: Callable[[list[Object]], bool],
    *,
    namespace: str | None = None,
    selector: str = "",
    field_selector: str = "",
    within: float = 60,
) -> list[Object]:
    """Wait until all objects of a kind together satisfy a condition, and return them.

    Raises:
        WaitedInVainError: it did not happen in time.
    """
    present: dict[str, Object] = {}
    within = patient(within)
    try:
        async with asyncio.timeout(within):
            watched = api.watch(api_version, kind, namespace, selector=selector, field_selector=field_selector)
            async with aclosing(watched) as events:
                async for event in events:
                    if event.type == "LIST":
                        present = {item["metadata"]["uid"]: item for item in event.object["items"]}
                    elif event.type == "DELETED":
                        present.pop(event.object["metadata"]["uid"], None)
                    else:
                        present[event.object["metadata"]["uid"]] = event.object
                    if condition(list(present.values())):
                        return list(present.values())
    except TimeoutError as error:
        raise WaitedInVainError(
            f"{kind} in {namespace}: not as wanted within {within} s; last: {_summary(list(present.values()))}"
        ) from error  # and from what the block that is left has failed by
    raise AssertionError("a watch never ends")


def _summary(bodies: list[Object]) -> str:
    """How many there are of each phase, and a few by name."""
    phases = Counter(body.get("status", {}).get("phase", "-") for body in bodies)
    names = [f"{body['metadata']['name']} {body.get('status', {}).get('phase', '')}".strip() for body in bodies[:5]]
    return f"{dict(phases)}, such as {', '.join(names)}" if bodies else "none"
