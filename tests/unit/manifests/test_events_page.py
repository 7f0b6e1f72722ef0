"""docs/operations.md tells of every Event that is published in a cluster, and of no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "docs/operations.md").read_text().split("\n### Events\n")[1].split("\n###")[0]
FOLDERS = ("cedana_sched/coordinator", "cedana_sched/cluster", "cedana_sched/kube", "adapters", "webhooks")
PUBLISHERS = frozenset(
    {
        "_event",
        "_event_of_record",
        "_publish",
        "_record_pod_event",
        "warn",
        "warn_pod_and_owner",
        "ObjectEvent",
        "PublishEvent",
    }
)
NAMES = frozenset(
    {"kind", "reason", "REASON", "EVENT_REASON", "NOT_FOLLOWED", "FAILED", "UNREADABLE", "_EVENT_REASONS"}
)
"""Of variables that hold the reason of an Event, in a module that publishes some."""
REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")


def reasons(module: ast.Module) -> Iterator[str]:
    """What stands for a reason: an argument of whoever publishes, or the value of a variable that is named so."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in PUBLISHERS:
                yield from texts(*(one for one in node.args if isinstance(one, ast.Constant)))
            case ast.Assign(targets=targets, value=ast.expr() as value) if named(*targets) & NAMES:
                yield from texts(value)
            case ast.AnnAssign(target=target, value=ast.expr() as value) if named(target) & NAMES:
                yield from texts(value)


def named(*targets: ast.expr) -> set[str]:
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def texts(*values: ast.expr) -> Iterator[str]:
    constants = (one for value in values for one in ast.walk(value) if isinstance(one, ast.Constant))
    yield from (one.value for one in constants if isinstance(one.value, str) and REASON.fullmatch(one.value))


def published(by: str) -> set[str]:
    """By modules that name one of these words."""
    sources = (path.read_text() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    publishing = (source for source in sources if re.search(rf"\b({by})\b", source))
    return {reason for source in publishing for reason in reasons(ast.parse(source))}


def told() -> list[str]:
    """From the first column, in its order."""
    cells = re.findall(r"^\| ([^|]*) \|", SECTION, re.MULTILINE)[1:]
    return [reason for cell in cells for reason in re.findall(r"`(\w+)`", cell)]


def test_the_page_has_every_event() -> None:
    assert sorted(told()) == sorted(published("ObjectEvent|PublishEvent|warn_pod_and_owner"))


def test_those_that_the_metric_counts_come_first() -> None:
    """What is told in words of the core goes to whoever listens, the metrics among them."""
    counted = told()[: told().index("MissedByWebhook") + 1]
    assert sorted(counted) == sorted(published("PublishEvent"))
