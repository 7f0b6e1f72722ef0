"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cedana_sched.cli.main import app

from .fake_engine import FakeEngine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    fake = FakeEngine(tmp_path)
    fake.start()
    yield fake
    fake.stop()


Cli = Callable[..., Result]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line against the engine of this test."""
    for variable in ("CEDANA_CHECKPOINT", "CEDANA_SCHED_STATE_DIR", "CEDANA_SCHED_STORE", "CEDANA_SCHED_KEY_FILE"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, ["--state-dir", str(tmp_path), *arguments], env=env, catch_exceptions=False)

    return run
