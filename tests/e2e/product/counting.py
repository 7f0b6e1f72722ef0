"""A program whose output shows whether anything of its work was lost, or done twice."""

from __future__ import annotations

import asyncio
from typing import Final

from tests.e2e.product.following import Following

COUNTS: Final = 140
COUNT: Final = (
    "python3",
    "-c",
    f"""
import time
for number in range({COUNTS}):
    print(number, flush=True)
    time.sleep(0.1)
""",
)
BEGUN: Final = 20
"""After so many counts it is worth saving."""
ALL: Final = [str(number) for number in range(COUNTS)]


async def begun(following: Following, *indices: int) -> None:
    """Wait until these have counted for a while."""
    for index in indices:
        await asyncio.wait_for(following.said(index, BEGUN), 120)
