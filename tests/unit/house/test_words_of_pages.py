"""On pages components call, watch and publish: they do not tell, hear, believe or remember, which only people do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_OF_PEOPLE = re.compile(
    r"\b(?:tells?|told|hears?|heard|believes?|believed|remembers?|remembered|forgets?)\b", re.IGNORECASE
)


def pages() -> list[Path]:
    folders = ("docs", "adapters", "manifests", "webhooks", "workloads")
    texts = ("manifests/chart/values.yaml", "manifests/chart/templates/NOTES.txt")
    found = [*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]
    return [*found, *(ROOT / name for name in texts)]


def words_of_people(text: str) -> Iterator[str]:
    """Each with its line, but for those in code."""
    without_code = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    for number, line in enumerate(without_code.splitlines(), 1):
        yield from (f"{number}: {word}" for word in _OF_PEOPLE.findall(line))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_components_are_no_people(page: Path) -> None:
    assert list(words_of_people(page.read_text())) == []


def test_such_words_are_found() -> None:
    text = "The agent is told.\n```sh\ntell it\n```\nIt `heard` of it.\nNobody Believes it.\n"
    assert list(words_of_people(text)) == ["1: told", "6: Believes"]
