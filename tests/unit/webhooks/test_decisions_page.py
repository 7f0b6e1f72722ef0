"""webhooks/README.md names every decision that the metric counts, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "webhooks/README.md").read_text()
SOURCES = (
    *(ROOT / "webhooks").rglob("*.py"),
    *(ROOT / "cedana_sched/eviction_holds").rglob("*.py"),
    *(ROOT / "adapters").glob("*/*/*.py"),  # not the extender, whose decisions are no webhook's
)
DECIDES = frozenset({"Answer", "Decision"})
WORD = re.compile(r"[a-z]+(?:-[a-z]+)*")


def decisions(module: ast.Module) -> Iterator[str]:
    """What stands for a decision: the first argument of an answer, or the value of what is called so."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in DECIDES:
                yield from words(first)
            case ast.keyword(arg="decision", value=value):
                yield from words(value)
            case ast.Assign(targets=[ast.Name(id="decision" | "KEPT" | "NOT_HELD" | "UNHELD")], value=value):
                yield from words(value)
            case ast.AnnAssign(target=ast.Name(id="KEPT" | "NOT_HELD" | "UNHELD"), value=ast.expr() as value):
                yield from words(value)
            case ast.Call(func=ast.Attribute(attr="labels"), args=[_, ast.Constant() as counted]):
                yield from words(counted)


def words(value: ast.expr) -> Iterator[str]:
    """Texts that the expression may be; what it compares is none of them."""
    match value:
        case ast.IfExp(body=body, orelse=other):
            yield from (*words(body), *words(other))
        case ast.Constant(value=str() as text) if WORD.fullmatch(text):
            yield text


def test_the_page_names_every_decision() -> None:
    told = PAGE.split("\nDecisions: ")[1]
    found = {word for path in SOURCES for word in decisions(ast.parse(path.read_text()))}
    assert {"identified", "held", "kept", "large", "unreadable", "rewritten"} <= found
    assert set(re.findall(r"`([a-z-]+)`", told)) == found
