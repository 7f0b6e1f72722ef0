"""The modules of the product, for rules about all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
ROOMS = (
    ROOT / "cedana_sched",
    ROOT / "webhooks",
    *(ROOT / "adapters" / scheduler for scheduler in ("kubernetes", "kueue", "volcano", "armada")),
)


def product_modules() -> Iterator[tuple[str, Path]]:
    """The dotted name and the file of each."""
    for room in ROOMS:
        root = ROOT if room.name == "cedana_sched" else room
        for path in sorted(room.rglob("*.py")):
            yield ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path
