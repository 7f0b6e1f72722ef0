"""`kubectl_complete-cedana`, which kubectl calls to complete the command line of the plugin.

Source: kubectl 1.26 and later, `pkg/cmd/plugin_completion.go`: the arguments are the words after `kubectl cedana`, of
which the last is completed. Each line is a candidate, a tab and its description; the last line is a directive of cobra.
"""

from __future__ import annotations

import sys
from typing import Final

from typer.main import get_command

from cedana_sched.cli.kubectl.main import app

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
        candidates = {
            spelling: one.help or ""
            for one in command.params
            if one.param_type_name == "option"
            for spelling in one.opts
            if spelling.startswith("--")
        }
    found = sorted(name for name in candidates if name.startswith(incomplete))
    return [*(f"{name}\t{candidates[name]}" for name in found), NO_FILES]


def main() -> None:
    """Entry point of the console script."""
    print("\n".join(complete(sys.argv[1:])))
