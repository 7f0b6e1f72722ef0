"""Watches as an API server serves them: from a resource version on, by selectors, with bookmarks, until they expire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import Resource
from cedana_sched.testing.selectors import selects
from cedana_sched.testing.store import Change, ObjectStore

EXPIRED: Object = {
    "type": "ERROR",
    "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"},
}


@dataclass(eq=False)
class _Watch:
    resource: Resource
    namespace: str | None
    query: Mapping[str, str]
    queue: asyncio.Queue[Object | None] = field(default_factory=asyncio.Queue)
    """Events; None ends the watch."""

    def deliver_change(self, change: Change) -> None:
        """What begins or ceases to match the selectors is added or deleted for watches by them."""
        if change.key[0] != self.resource:
            return
        was, is_now = self._selects(change.before), self._selects(change.now)
        if is_now:
            self.queue.put_nowait({"type": "MODIFIED" if was else "ADDED", "object": change.now})
        elif was and change.before is not None:
            metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
            self.queue.put_nowait({"type": "DELETED", "object": {**change.before, "metadata": metadata}})

    def _selects(self, body: Object | None) -> bool:
        return body is not None and selects(body, self.namespace, self.query)


class Watches:
    """The open watches of a store, and the changes that a watch can still begin with."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._changes: list[Change] = []
        self._oldest = 0
        """The last version at which no watch can begin any more."""
        self._open: list[_Watch] = []
        store.subscribe(self._publish)

    async def lines(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], *, only_metadata: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch. Without a version in the query, it begins with all objects."""
        watch = _Watch(resource, namespace, query)
        since = int(query.get("resourceVersion") or 0)
        if 0 < since < self._oldest:
            yield msgspec.json.encode(EXPIRED)
            return
        for change in self._changes if since else self._current_state():
            if change.version > since:
                watch.deliver_change(change)
        self._open.append(watch)
        try:
            while (event := await watch.queue.get()) is not None:
                shown = {"metadata": event["object"]["metadata"]} if only_metadata else event["object"]
                yield msgspec.json.encode({**event, "object": shown})
        finally:
            self._open.remove(watch)

    def repeat_current_state(self) -> None:
        """Publish the current state once more, on every watch."""
        for change in self._current_state():
            for watch in self._open:
                watch.deliver_change(change._replace(before=change.now))

    def bookmark(self) -> None:
        """Publish the current version, as API servers do about once a minute, on watches that want bookmarks."""
        event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self._store.version)}}}
        for watch in self._open:
            if watch.query.get("allowWatchBookmarks") == "true":
                watch.queue.put_nowait(event)

    def end(self) -> None:
        """End the open watches, as API servers do every few minutes."""
        for watch in self._open:
            watch.queue.put_nowait(None)

    def compact(self) -> None:
        """Drop changes: a watch of a version before the current one has expired (410)."""
        self._changes.clear()
        self._oldest = self._store.version

    def _publish(self, change: Change) -> None:
        self._changes.append(change)
        for watch in self._open:
            watch.deliver_change(change)

    def _current_state(self) -> list[Change]:
        return [Change(self._store.version, key, None, body) for key, body in self._store.objects.items()]
