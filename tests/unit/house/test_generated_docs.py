"""What docs/ says about states, commands and exit codes is what the code does."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def write_docs() -> ModuleType:
    return load("write_docs")


def load(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_no_page_is_stale(write_docs: ModuleType) -> None:
    assert write_docs.stale() == [], "run 'make docs'"


def test_every_part_stands_in_a_page(write_docs: ModuleType) -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    assert [name for name in write_docs.PARTS if f"<!-- begin {name} -->" not in pages] == []


def test_a_changed_page_is_noticed(write_docs: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "cli.md"
    page.write_text((ROOT / "docs" / "cli.md").read_text().replace("| 5 | TIMED_OUT |", "| 6 | TIMED_OUT |"))
    assert write_docs.stale(tmp_path) == [page]


def test_every_anchor_leads_to_a_definition(write_docs: ModuleType) -> None:
    assert write_docs.wrong() == []


def test_a_walkthrough_of_other_lines_is_noticed(write_docs: ModuleType, tmp_path: Path) -> None:
    page = tmp_path / "walkthrough.md"
    text = (ROOT / "docs" / "walkthrough.md").read_text()
    page.write_text(text)
    assert write_docs.stale(tmp_path) == []
    page.write_text(text.replace("#L", "#L1", 1))
    assert write_docs.stale(tmp_path) == [page]
    page.write_text(text.replace(".py::", ".py::Renamed.", 1))
    (problem,) = write_docs.wrong(tmp_path)
    assert problem.startswith("docs/walkthrough.md:")


@pytest.mark.parametrize(
    ("path", "line", "is_breach"),
    [
        ("requirements/dev.txt", "--extra-index-url x", True),
        ("requirements/dev.txt", "ruff==1 --hash=sha256:0", False),
        ("a.py", "see https:/" + "/index.of-packages.net/x", True),
        ("a.py", "http://127.0.0.1:7070 and https://s3.example.com", False),
        ("a.py", "open('/" + "work/main')", True),
        ("a.py", "open('/homework/x')", False),
    ],
)
def test_the_house_check_finds_hosts_and_machine_paths(path: str, line: str, is_breach: bool) -> None:
    assert bool(list(load("check_house").complaints(Path(path), line))) is is_breach


def test_options_of_some_commands_alone_are_in_the_pages(write_docs: ModuleType) -> None:
    commands = write_docs.PARTS["commands"]()
    assert commands.count("`--kubeconfig KUBECONFIG`") == 1, "of doctor alone"
    assert commands.count("`--namespace NAMESPACE`") == 3
    assert "`--kubeconfig" not in write_docs.PARTS["commands of kubectl"](), "all commands have it"
