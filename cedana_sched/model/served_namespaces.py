"""Served namespaces: those in which the product holds, saves and restores pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ServedNamespaces:
    """All namespaces except those excluded by an admin or by the product itself.

    In an excluded namespace no eviction is held and no pod saved, restored or published. Holds created before the
    exclusion are released.
    """

    excluded: frozenset[str] = frozenset()

    def includes(self, namespace: str) -> bool:
        """Return whether the namespace is served; cluster-scoped objects are."""
        return namespace not in self.excluded

    def objection(self, namespace: str) -> str | None:
        """Return a user-facing reason why the namespace is not served; None if it is."""
        return None if self.includes(namespace) else f"namespace {namespace} is excluded (excludedNamespaces)"


EVERYWHERE: Final = ServedNamespaces()
"""No namespace is excluded."""
