"""The objects of a mirror by a key of ours: by their uid, or by the uid of the Job that controls them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Generic, TypeVar

from cedana_sched.kube.watching import HasMetadata, Mirror

T = TypeVar("T", bound=HasMetadata)


def own_uid(one: HasMetadata) -> str:
    return one.metadata.uid


def owner_uid(one: HasMetadata) -> str:
    """Empty where nothing controls it."""
    owner = one.metadata.owner
    return owner.uid if owner else ""


class Index(Generic[T]):
    """Follows a mirror.

    Args:
        mirror: may hold objects already.
        key_of: an object whose key is empty is left out.
        told: hears the key after every change of an object under it.
    """

    def __init__(
        self, mirror: Mirror[T], key_of: Callable[[T], str], told: Callable[[str], None] | None = None
    ) -> None:
        self._under: defaultdict[str, dict[str, T]] = defaultdict(dict)
        self._key_of = key_of
        self._told = told
        for one in mirror:
            self._change(None, one)
        mirror.subscribe(self._change)

    def __call__(self, key: str) -> tuple[T, ...]:
        """What is under this key, by name."""
        return tuple(sorted(self._under.get(key, {}).values(), key=lambda one: one.metadata.name))

    def one(self, key: str) -> T | None:
        """What is under a key that no two objects have."""
        return next(iter(self(key)), None)

    def _change(self, before: T | None, now: T | None) -> None:
        if before is not None:
            self._under[self._key_of(before)].pop(before.metadata.uid, None)
        if now is not None and self._key_of(now):
            self._under[self._key_of(now)][now.metadata.uid] = now
        for key in {self._key_of(one) for one in (before, now) if one is not None}:
            if not self._under[key]:
                del self._under[key]
            if self._told is not None and key:
                self._told(key)
