"""Each rule that the chart gives, or an adapter asks for, has a line above it that says why."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEMPLATES = sorted((ROOT / "manifests" / "chart" / "templates").rglob("*.yaml"))
FRAGMENTS = sorted(ROOT.glob("adapters/*/rbac.yaml"))
ROLE = re.compile(r"^kind: (Cluster)?Role$", re.MULTILINE)
RULE = re.compile(r"^ +- (apiGroups|resources|nonResourceURLs|resourceNames|verbs):")


def roles() -> Iterator[tuple[Path, str]]:
    """The parts of templates that are roles, and the fragments, with the files that they stand in."""
    for path in TEMPLATES:
        yield from (
            (path, part) for part in re.split(r"^---$", path.read_text(), flags=re.MULTILINE) if ROLE.search(part)
        )
    yield from ((path, path.read_text()) for path in FRAGMENTS)


def unexplained(text: str) -> list[str]:
    """The first lines of the rules that have no comment right above."""
    lines = text.partition("rules:")[2].splitlines()
    return [
        line for before, line in itertools.pairwise(lines)
        if RULE.match(line) and not before.strip().startswith("# ")
    ]  # fmt: skip


def test_there_are_rules_to_look_at() -> None:
    assert {path.parent.name for path, _ in roles()} >= {"agent", "coordinator", "webhooks", "kueue", "volcano"}
    assert sum(len(re.findall(RULE.pattern, text, re.MULTILINE)) for _, text in roles()) > 40


@pytest.mark.parametrize(("path", "text"), [pytest.param(*one, id=str(one[0].relative_to(ROOT))) for one in roles()])
def test_every_rule_says_why(path: Path, text: str) -> None:
    assert unexplained(text) == [], path
