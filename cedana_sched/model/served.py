"""Whether a namespace is one in which the suite acts: whose pods it holds, saves and continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Served:
    """All namespaces but those that an admin, or the suite itself, leaves alone.

    In an excluded one nothing is held, saved, continued or published. What waits there for our release, because it
    began before the namespace was excluded, is released.
    """

    excluded: frozenset[str] = frozenset()

    def includes(self, namespace: str) -> bool:
        """Whether it is ours to act in; so is what has no namespace."""
        return namespace not in self.excluded

    def objection(self, namespace: str) -> str | None:
        """Why nothing is done in it, for people; None where it is served."""
        return None if self.includes(namespace) else f"namespace {namespace} is excluded (excludedNamespaces)"


EVERYWHERE: Final = Served()
"""Nothing is excluded."""
