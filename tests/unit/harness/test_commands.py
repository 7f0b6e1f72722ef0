"""Other programs: what they print, and how their failures are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError


async def test_program_is_given_and_gives_text() -> None:
    assert await run("sh", "-c", "cat; echo $SPICE", what="", remedy="", stdin=b"hot ", env={"SPICE": "salt"}) == (
        "hot salt\n"
    )


async def test_failure_is_told_with_the_last_line(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "cook.log"

    with pytest.raises(ClusterError) as error:
        await run("sh", "-c", "echo out; echo no salt >&2; exit 3", what="cooking failed", remedy="buy some", log=log)

    assert str(error.value) == f"cooking failed: no salt (log: {log}); buy some"
    assert log.read_text() == "out\nno salt\n"


async def test_silent_failure_is_told_with_its_status() -> None:
    with pytest.raises(ClusterError, match=r"^cooking failed: exit status 3; buy salt$"):
        await run("sh", "-c", "exit 3", what="cooking failed", remedy="buy salt")


async def test_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ClusterError, match=r"^cooking failed: there is no no-such-pan; install it$"):
        await run("no-such-pan", what="cooking failed", remedy="buy salt")
