"""A bounded map in which each namespace has a fair share: what one tenant adds displaces nothing of a smaller one.

Facts about pods outlive the pods, and anyone may create pods and namespaces. So the map has a bound over all
namespaces; at the bound, the namespace with the most entries loses its oldest one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Displaced(msgspec.Struct, Generic[T], frozen=True):
    """An entry that the map has lost."""

    namespace: str
    uid: str
    value: T


class NamespaceShares(Generic[T]):
    """Values by namespace and uid, oldest first; each operation is O(1).

    Args:
        most: entries over all namespaces.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._of: dict[str, dict[str, T]] = {}
        self._by_size: dict[int, dict[str, None]] = {}
        """Namespaces by their number of entries."""
        self._largest = 0

    def __len__(self) -> int:
        return self._count

    def has(self, namespace: str, uid: str) -> bool:
        return uid in self._of.get(namespace, {})

    def get(self, namespace: str, uid: str) -> T | None:
        return self._of.get(namespace, {}).get(uid)

    def put(self, namespace: str, uid: str, value: T) -> Displaced[T] | None:
        """Add or replace the value; return the entry that it displaces."""
        known = self._of.setdefault(namespace, {})
        is_new = uid not in known
        known[uid] = value
        if is_new:
            self._resize(namespace, len(known) - 1, len(known))
        return self._displace() if self._count > self._most else None

    def drop(self, namespace: str, uid: str) -> None:
        """Remove the entry, if it is there."""
        known = self._of.get(namespace, {})
        if uid in known:
            del known[uid]
            self._resize(namespace, len(known) + 1, len(known))

    def _displace(self) -> Displaced[T]:
        namespace = next(iter(self._by_size[self._largest]))
        uid, value = next(iter(self._of[namespace].items()))
        self.drop(namespace, uid)
        return Displaced(namespace, uid, value)

    def _resize(self, namespace: str, before: int, now: int) -> None:
        self._count += now - before
        if before:
            alike = self._by_size[before]
            del alike[namespace]
            if not alike:
                del self._by_size[before]
        if now:
            self._by_size.setdefault(now, {})[namespace] = None
        else:
            del self._of[namespace]
        self._largest = max(self._largest, now)
        while self._largest and self._largest not in self._by_size:
            self._largest -= 1
