"""The context of a command: its output, and the engine's state directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cedana_sched.cli.output import Output

if TYPE_CHECKING:
    from cedana_sched.local.client import EngineClient


@dataclass(frozen=True)
class CommandContext:
    """A command's context; `state_directory` is the chosen one, or the default."""

    output: Output
    chosen_state_directory: Path | None = None

    @property
    def state_directory(self) -> Path:
        from cedana_sched.local.client import DEFAULT_STATE_DIRECTORY

        return self.chosen_state_directory or DEFAULT_STATE_DIRECTORY

    def client(self) -> EngineClient:
        """Return a client of the engine, not yet connected."""
        from cedana_sched.local.client import EngineClient

        return EngineClient(self.state_directory)
