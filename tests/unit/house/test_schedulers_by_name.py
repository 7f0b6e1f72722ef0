"""What all schedulers share names none of them: the adapters' packages do, and plug in by one base class."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched_webhooks.schedulers import SchedulerWebhooks, load

ROOT = Path(__file__).parents[3]
ROOMS = (
    "cedana_sched/adapter",
    "cedana_sched/eviction_holds",
    "cedana_sched/kube",
    "cedana_sched/component",
    "webhooks",
)
SCHEDULERS = ("armada", "kueue", "volcano")
NAME = re.compile("|".join(SCHEDULERS), re.IGNORECASE)
AS_AN_EXAMPLE: dict[str, str] = {}
"""Files whose docstrings name a scheduler, and why; their code names none either."""


def _files() -> list[Path]:
    return sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def named_in_code(text: str) -> Iterator[str]:
    """Each line of a program that names a scheduler, without comments and docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    yield from (line for line in ast.unparse(tree).splitlines() if NAME.search(line))


def _is_text(statement: object) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


@pytest.mark.parametrize("path", _files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_all_schedulers_share_names_none(path: Path) -> None:
    text = path.read_text()
    assert list(named_in_code(text)) == []
    assert str(path.relative_to(ROOT)) in AS_AN_EXAMPLE or NAME.search(text) is None


def test_a_name_is_found_wherever_it_is_in_code() -> None:
    text = '"""Of Kueue."""\nkueue_users = 1\n"""Kueue\'s."""\nx = "batch.volcano.sh"  # Armada\nimport a_armada\n'
    assert list(named_in_code(text)) == ["kueue_users = 1", "x = 'batch.volcano.sh'", "import a_armada"]


@pytest.mark.parametrize("scheduler", [*SCHEDULERS, "kubernetes"])
def test_every_scheduler_plugs_into_the_webhooks_in_the_same_way(scheduler: str) -> None:
    assert issubclass(load(scheduler), SchedulerWebhooks)
