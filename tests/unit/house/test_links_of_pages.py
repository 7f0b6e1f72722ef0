"""Links between pages lead somewhere, and to the heading that is meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def pages() -> list[Path]:
    folders = ("docs", "adapters", "manifests", "webhooks", "workloads")
    return [*ROOT.glob("*.md"), *(page for folder in folders for page in (ROOT / folder).rglob("*.md"))]


def anchors(page: Path) -> list[str]:
    """By which its headings are linked, as GitHub makes them of each alone."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def linked(page: Path) -> Iterator[Path]:
    """The pages to which it leads."""
    for file, _ in _LINK.findall(_FENCED.sub("", page.read_text())):
        if file.endswith(".md"):
            yield (page.parent / file).resolve()


def dead_links(page: Path) -> Iterator[str]:
    for file, anchor in _LINK.findall(_FENCED.sub("", page.read_text())):
        target = page.parent / file if file else page
        if not target.exists():
            yield file
        elif anchor and target.suffix == ".md" and anchors(target).count(anchor) != 1:
            yield f"{file}#{anchor}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_one_place(page: Path) -> None:
    assert list(dead_links(page)) == []


def test_every_page_is_reached_from_the_first_one() -> None:
    reached, found = set[Path](), [ROOT / "README.md"]
    while found:
        reached.add(page := found.pop())
        found += (one for one in linked(page) if one not in reached)
    assert sorted(page for page in pages() if page not in reached) == []


@pytest.mark.parametrize("link", ["[a](b.md)", "[a](#c)", "[a](#twice)", "[a](other.md#c)"])
def test_a_dead_link_is_found(link: str, tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n## Twice\n## Twice\n```sh\n# c\n```\n[a](#page) [a](other.md#other) {link}\n")
    assert len(list(dead_links(page))) == 1
