"""An engine whose store is sealed does not start without the keys: it would save memory in the clear, or nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cedana_sched.cli.exit_codes import ExitCode
from cedana_sched.snapshot.criu_toolchain import Toolchain
from tests.integration.local.engine.conftest import TIMEOUT_SECONDS, Engine
from tests.integration.local.engine.witnesses import Witness
from tests.servers.sealing import new_keys

pytestmark = pytest.mark.criu


async def refused(home: Path, *options: str) -> str:
    """What an engine says that does not start."""
    engine = Engine(home, options=options)
    try:
        with pytest.raises(pytest.fail.Exception):
            await engine.start()
        assert await engine.ended() == ExitCode.REFUSED
    finally:
        await engine.stop()
    return engine.log.read_text()


async def test_an_engine_that_was_started_with_a_key_file_is_not_started_without(
    home: Path, toolchain: Toolchain
) -> None:
    keys, theirs = str(new_keys(home)), str(new_keys(home, "theirs"))
    engine = Engine(home, options=("--key-file", keys))
    await engine.start()
    await engine.stop()  # it has saved nothing yet

    said = await refused(home)
    assert "namespace default" in said
    assert "--key-file" in said
    assert "and not" in await refused(home, "--key-file", theirs)

    await engine.start()
    try:
        witness = await Witness.submit(engine)
        await witness.running()
        async with engine.client() as client, asyncio.timeout(TIMEOUT_SECONDS):
            await client.checkpoint(witness.uid, leave_running=False)
            await client.restore(witness.uid)
        await witness.running(2)
        await witness.end()
    finally:
        await engine.end()
    assert (await refused(home)).count("none is given") == 2
