"""Objects by something in them, so that nobody looks through all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cedana_sched.kube.watching import HasName, Informer, Key, name_of

K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=HasName)


class Index(Generic[K, T]):
    """Objects by their key.

    Args:
        key_of: an object whose key is None is left out.
        mirror: is followed, and may hold objects already; without one, somebody calls `note` for every change.
    """

    def __init__(self, key_of: Callable[[T], K | None], informer: Informer[T] | None = None) -> None:
        self._key_of = key_of
        self._found: dict[K, dict[Key, T]] = {}
        if informer is not None:
            for one in informer:
                self.note(None, one)
            informer.subscribe(self.note)

    def of(self, key: K) -> tuple[T, ...]:
        """What is under this key; what has changed last comes last."""
        return tuple(self._found.get(key, {}).values())

    def one(self, key: K) -> T | None:
        """What is under a key that no two objects have."""
        return next(iter(self._found.get(key, {}).values()), None)

    def note(self, before: T | None, now: T | None) -> None:
        """A mirror's sink; see `Informer.subscribe`."""
        if before is not None and (key := self._key_of(before)) is not None and (among := self._found.get(key)):
            among.pop(name_of(before), None)
            if not among:
                del self._found[key]
        if now is not None and (key := self._key_of(now)) is not None:
            self._found.setdefault(key, {})[name_of(now)] = now
