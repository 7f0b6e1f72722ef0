"""Every command explains itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from cedana_sched.cli.main import app

from .conftest import Cli


def _paths(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from _paths(child, (*path, name))


@pytest.mark.parametrize("path", list(_paths(get_command(app))), ids=" ".join)
def test_help_of_every_command(path: tuple[str, ...], cli: Cli) -> None:
    done = cli(*path, "--help")
    assert done.exit_code == 0
    assert "Usage:" in done.output


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_help_says_how_a_snapshot_is_named(command: str, cli: Cli) -> None:
    said = cli("snapshots", command, "--help", env={"COLUMNS": "120"}).output
    assert "namespace/id[/index[/container]]@generation." in said


def test_a_new_engine_takes_nothing_from_a_running_one(cli: Cli) -> None:
    own, others = (
        cli(*path, "--help", env={"COLUMNS": "200"}).output for path in (("engine", "run"), ("store", "check"))
    )
    assert "the running engine's" in others
    assert "the running engine's" not in own
    assert "nothing is sealed" in own
