"""An engine that runs by another version's CRIU says so at each start, with what to do about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedana_sched.local import engine
from cedana_sched.snapshot.criu_toolchain import OLDER_REMEDY, Origin, Toolchain


@pytest.mark.parametrize(("origin", "warns"), [(Origin.OLDER, True), (Origin.PINNED, False), (Origin.MACHINE, False)])
async def test_another_releases_criu_is_a_warning(monkeypatch: pytest.MonkeyPatch, origin: Origin, warns: bool) -> None:
    here = Path("/cache/criu-1")
    found = Toolchain("4.2", here, here, here, here, origin=origin)
    monkeypatch.setattr(engine, "ensure_toolchain", lambda **_: found)
    with capture_logs() as logs:
        assert await engine._toolchain() is found
    said = [(one["log_level"], one["version"], one["remedy"]) for one in logs]
    assert said == ([("warning", "4.2", OLDER_REMEDY)] if warns else [])
