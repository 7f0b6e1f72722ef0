"""The files of docs/write-an-adapter.md, and its modules, word by word."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[4] / "docs" / "write-an-adapter.md"
_FILE = re.compile(r"^```\w+ (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMANDS = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def files() -> dict[str, str]:
    """What stands on the page under a file's name, in its order."""
    return dict(_FILE.findall(PAGE.read_text()))


def commands() -> list[str]:
    """What it says to type."""
    return [line for block in _COMMANDS.findall(PAGE.read_text()) for line in block.splitlines()]


def modules() -> dict[str, Any]:
    """The page's modules under their names; once they are imported, they stay."""
    for name, source in files().items():
        module = name.removesuffix(".py")
        if name.endswith(".py") and module not in sys.modules:
            made = types.ModuleType(module)
            sys.modules[module] = made
            exec(compile(source, f"{PAGE}:{name}", "exec"), made.__dict__)  # noqa: S102 - our own page
    return {name.removesuffix(".py"): sys.modules[name.removesuffix(".py")] for name in files() if name.endswith(".py")}
