"""Anchors of pages lead to the lines of definitions, and wrong ones are errors that name a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.code_anchors import with_lines, wrong_anchors

CODE = """
LIMIT: int = 3


class Node:
    seconds = 1.0

    @property
    def name(self) -> str:
        def inner() -> str:
            return "n"

        return inner()


async def freeze() -> None: ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "cedana_sched").mkdir()
    (tmp_path / "cedana_sched" / "node.py").write_text(CODE)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("LIMIT", 2),
        ("Node", 5),
        ("Node.seconds", 6),
        ("Node.name", 9),
        ("Node.name.inner", 10),
        ("freeze", 16),
    ],
)
def test_an_anchor_gets_the_line_of_its_definition(root: Path, name: str, line: int) -> None:
    text = f"Calls [`cedana_sched/node.py::{name}`](), twice: [`cedana_sched/node.py::{name}`](../other.py#L7)."
    link = f"[`cedana_sched/node.py::{name}`](../cedana_sched/node.py#L{line})"
    assert with_lines(text, root) == f"Calls {link}, twice: {link}."
    assert list(wrong_anchors(text, root)) == []


@pytest.mark.parametrize("text", ["[node](../cedana_sched/node.py)", "`cedana_sched/node.py::gone`", "[`a::b`](c.md)"])
def test_other_links_are_left(root: Path, text: str) -> None:
    assert with_lines(text, root) == text
    assert list(wrong_anchors(text, root)) == []


@pytest.mark.parametrize(
    ("anchor", "problem"),
    [
        ("cedana_sched/node.py::freezes", "cedana_sched/node.py defines no freezes: is it freeze?"),
        ("cedana_sched/gone.py::Node.name", "there is no file cedana_sched/gone.py: is it cedana_sched/node.py?"),
        ("cedana_sched/gone.py::x", "there is no file cedana_sched/gone.py, and no other file defines x"),
    ],
)
def test_a_wrong_anchor_is_an_error_and_stays_as_it_is(root: Path, anchor: str, problem: str) -> None:
    text = f"First line\n[`{anchor}`](../somewhere.py#L3)\n"
    assert list(wrong_anchors(text, root)) == [f"2: {problem}"]
    assert with_lines(text, root) == text


def test_a_definition_that_has_moved_is_found(root: Path) -> None:
    (root / "webhooks").mkdir()
    (root / "webhooks" / "server.py").write_text("class Server:\n    def answer(self) -> None: ...\n")
    (problem,) = wrong_anchors("[`cedana_sched/node.py::Server.answer`]()", root)
    assert problem == "1: cedana_sched/node.py defines no Server.answer: is it webhooks/server.py?"
