"""The taint by which tests evict the pods of a node, and the toleration of what they leave there."""

from __future__ import annotations

from typing import Final

EVICTING: Final = "tests.cluster/goes"
STAYS: Final = ({"key": EVICTING, "operator": "Exists"},)
"""Of DNS and our own components: without them no snapshot is taken anywhere."""
