"""What befalls the table in which Armada's server remembers the client ids of submissions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.armada import stores
from tests.cluster.armada.armada import Armada
from tests.cluster.patience import patient

UNWRITTEN = "EXCLUSIVE"
"""A submission is published, and its client id not remembered: so its answer does not come."""
UNREAD = "ACCESS EXCLUSIVE"
"""A submission is heard of, and not published."""
_LOCKED = "locked"
_LOCK = """\
BEGIN;
LOCK TABLE job_deduplication IN {mode} MODE;
\\echo {said}
"""
_FORGET = """\
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database();
ROLLBACK;
"""


@asynccontextmanager
async def client_ids_locked(armada: Armada, mode: str) -> AsyncIterator[None]:
    """Nobody gets further than one of these modes inside the block; who has waited for it has waited in vain."""
    session = await asyncio.create_subprocess_exec(
        *armada.machine.entered(*stores.psql("lookout")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert session.stdin is not None
    assert session.stdout is not None
    try:
        session.stdin.write(_LOCK.format(mode=mode, said=_LOCKED).encode())
        async with asyncio.timeout(patient(10)):
            assert (await session.stdout.readline()).decode().strip() == _LOCKED
        yield
    finally:
        await session.communicate(_FORGET.encode())
