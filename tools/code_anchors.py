"""Anchors of pages in the code: a link whose text is `path::qualname` leads to the line of that definition.

    [`cedana_sched/agent/node_agent.py::NodeAgent.perform`](../cedana_sched/agent/node_agent.py#L136)

Only the text is written by hand. `make docs` writes the target, and `make lint` compares it. Paths are relative to the
root of the repository. A qualname is a class, a function, or a variable of a module or a class.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_ANCHOR = re.compile(r"\[`(?P<path>[^`\s]+\.py)::(?P<name>[^`\s]+)`\]\((?P<target>[^)\s]*)\)")

_Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def with_lines(text: str, root: Path = ROOT) -> str:
    """Return the text of a page in docs/ with the target of every anchor; those of wrong anchors are left."""

    def link(match: re.Match[str]) -> str:
        path, name = match["path"], match["name"]
        line = _lines(root / path).get(name) if (root / path).is_file() else None
        return match[0] if line is None else f"[`{path}::{name}`](../{path}#L{line})"

    return _ANCHOR.sub(link, text)


def wrong_anchors(text: str, root: Path = ROOT) -> Iterator[str]:
    """Yield each anchor that leads to no definition, as `line: what`, with the nearest name that there is."""
    for number, line in enumerate(text.splitlines(), 1):
        for match in _ANCHOR.finditer(line):
            path, name = match["path"], match["name"]
            if not (root / path).is_file():
                yield f"{number}: there is no file {path}{_hint(name, _files_with(name, root))}"
            elif name not in (known := _lines(root / path)):
                near = difflib.get_close_matches(name, known, 1, 0.4)
                yield f"{number}: {path} defines no {name}{_hint(name, near or _files_with(name, root))}"


def _hint(name: str, found: list[str]) -> str:
    return f": is it {' or '.join(found)}?" if found else f", and no other file defines {name}"


def _files_with(name: str, root: Path) -> list[str]:
    """Return the files of the product that define a name, at most three."""
    first = re.compile(rf"\b(?:class|def) {re.escape(name.rpartition('.')[2])}\b")
    files = (
        path for folder in ("cedana_sched", "webhooks", "adapters") for path in sorted((root / folder).rglob("*.py"))
    )
    found = (path for path in files if first.search(path.read_text(encoding="utf-8")) and name in _lines(path))
    return [path.relative_to(root).as_posix() for path in found][:3]


@functools.cache
def _lines(path: Path) -> dict[str, int]:
    """Return the line of each definition in a file, by qualname; of several the first."""
    found: dict[str, int] = {}
    for name, line in _definitions(ast.parse(path.read_text(encoding="utf-8")), ""):
        found.setdefault(name, line)
    return found


def _definitions(scope: _Scope, prefix: str) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(scope):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield prefix + node.name, node.lineno
                yield from _definitions(node, f"{prefix}{node.name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name, node.lineno
