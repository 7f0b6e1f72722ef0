"""An index over cached objects, instead of a scan of all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cedana_sched.kube.watching import HasName, Informer, Key, object_key_of

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=HasName)


class Index(Generic[K, T]):
    """Objects by key.

    Args:
        key_of: returns an object's key, or None to leave the object out.
        informer: the informer to follow, which may hold objects already; without one, `on_object_change` must get each.
    """

    def __init__(self, key_of: Callable[[T], K | None], informer: Informer[T] | None = None) -> None:
        self._key_of = key_of
        self._found: dict[K, dict[Key, T]] = {}
        if informer is not None:
            for one in informer:
                self.on_object_change(None, one)
            informer.subscribe(self.on_object_change)

    def objects_of(self, key: K) -> tuple[T, ...]:
        """Return the objects of this key, the latest changed one last."""
        return tuple(self._found.get(key, {}).values())

    def unique_object_of(self, key: K) -> T | None:
        """Return the object of a unique key, or None."""
        return next(iter(self._found.get(key, {}).values()), None)

    def on_object_change(self, before: T | None, now: T | None) -> None:
        """Record a change; a sink for `Informer.subscribe`."""
        if before is not None and (key := self._key_of(before)) is not None and (among := self._found.get(key)):
            among.pop(object_key_of(before), None)
            if not among:
                del self._found[key]
        if now is not None and (key := self._key_of(now)) is not None:
            self._found.setdefault(key, {})[object_key_of(now)] = now
