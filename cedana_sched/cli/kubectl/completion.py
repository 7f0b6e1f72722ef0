"""`kubectl_complete-cedana`, which kubectl calls to complete the command line of the plugin.

Source: kubectl 1.26 and later, `pkg/cmd/plugin_completion.go`: the arguments are the words after `kubectl cedana`, of
which the last is completed. Each line is a candidate, a tab and its description; the last line is a directive of cobra.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from typer.main import get_command

from cedana_sched.cli.kubectl.main import app
from cedana_sched.cli.output import Format

NO_FILES: Final = ":4"
"""cobra's `ShellCompDirectiveNoFileComp`."""


def complete(words: list[str]) -> list[str]:
    """Return the lines for kubectl."""
    *before, incomplete = words or [""]
    commands = getattr(get_command(app), "commands", {})
    command = next((commands[word] for word in before if word in commands), None)
    if command is None:
        candidates = {name: (one.help or "").split("\n")[0] for name, one in commands.items()}
    else:
        candidates = _arguments_after(before[-1], command, incomplete)
    found = sorted(name for name in candidates if name.startswith(incomplete))
    return [*(f"{name}\t{candidates[name]}" for name in found), NO_FILES]


def _arguments_after(last: str, command: Any, incomplete: str) -> dict[str, str]:
    """Return the values of the option before, or the options if one was begun, as kubectl does."""
    options = [one for one in command.params if one.param_type_name == "option"]
    named = next((one for one in options if last in one.opts and not one.is_flag), None)
    if named is not None:
        return dict.fromkeys(Format, "") if "--output" in named.opts else {}
    if not incomplete.startswith("-"):
        return {}
    return {spelling: one.help or "" for one in options for spelling in one.opts if spelling.startswith("--")}


def main() -> None:
    """Entry point of the console script."""
    print("\n".join(complete(sys.argv[1:])))
