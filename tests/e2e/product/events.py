"""Events of ours, which are written a while after what they are about."""

from __future__ import annotations

from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.fixtures.namespace import Namespace


async def wait_for_messages(namespace: Namespace, about: str, reason: str, *, kind: str | None = None) -> list[str]:
    """Wait until Events of ours on an object of this name have this reason, and return what they say.

    Args:
        namespace: of the object.
        about: its name.
        reason: of the Events.
        kind: `Normal` or `Warning`; None: either.
    """

    def messages(events: list[Object]) -> list[str]:
        return [one["message"] for one in events if _is_ours(one, about, reason) and kind in (None, one["type"])]

    found = await wait_for_all(
        namespace.api, "v1", "Event", lambda events: bool(messages(events)), namespace=namespace.name
    )
    return messages(found)


def _is_ours(event: Object, about: str, reason: str) -> bool:
    is_ours: bool = event["source"].get("component") == "cedana-sched"
    return is_ours and event["reason"] == reason and event["involvedObject"]["name"] == about
