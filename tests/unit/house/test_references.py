"""References to modules and files in texts, strings and code of other languages lead somewhere.

mypy finds a stale import. It finds no stale name in `python -m`, in `monkeypatch.setattr("module.name")`, in a program
in a string, in a script, or on a page.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.tracked import tracked_files

ROOT = Path(__file__).resolve().parents[3]
ROOTS = {
    "cedana_sched_armada": "adapters.armada.",
    "cedana_sched_kueue": "adapters.kueue.",
    "cedana_sched_volcano": "adapters.volcano.",
    "cedana_sched_webhooks": "webhooks.",
}
"""Import packages that are not at the top, and where they are."""
NO_MODULES = {"cedana_sched.adapters": "a group of entry points", "cedana_sched.webhooks": "a group of entry points"}
INVENTED = re.compile(
    r"^(?:CHANGELOG\.md|tests/unit/(?:house|tools)/|tests/unit/harness/test_images_inputs|tests/integration/tools/)"
)
"""Files that name what once was, or what a test makes up."""

_MODULE = re.compile(r"\b((?:cedana_sched(?:_[a-z]+)?|tests)(?:\.[a-z_][a-z0-9_]*)+)\b(?!/)")
_FILE = re.compile(
    r"(?<![\w/.-])((?:adapters|cedana_sched|demo|manifests|tests|tools|webhooks)/[\w./-]+\.(?:md|py|sh|yaml))\b"
)
_SUFFIXES = (".json", ".log", ".md", ".py", ".service", ".sh", ".toml", ".txt", ".yaml")


@cache
def tracked() -> frozenset[str]:
    return frozenset(tracked_files(ROOT))


@cache
def folders() -> frozenset[str]:
    return frozenset(str(parent) for name in tracked() for parent in Path(name).parents)


def is_there(name: str) -> bool:
    """Whether a dotted name is a folder, a module, or a name that the text of its longest module has."""
    parts = (ROOTS.get(name.partition(".")[0], "") + name).split(".")
    for length in range(len(parts), 0, -1):
        place, rest = "/".join(parts[:length]), parts[length:]
        file = next((one for one in (f"{place}.py", f"{place}/__init__.py") if one in tracked()), None)
        if file is not None:
            return (
                not rest
                or rest[0].startswith("__")
                or re.search(rf"\b{rest[0]}", (ROOT / file).read_text()) is not None
            )
        if place in folders():
            return not rest
    return False


def stale(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _MODULE.finditer(line):
            if not match[1].endswith(_SUFFIXES) and match[1] not in NO_MODULES and not is_there(match[1]):
                yield f"{number}: {match[1]}"
        for match in _FILE.finditer(line):
            if match[1] not in tracked() and not any(name.endswith(f"/{match[1]}") for name in tracked()):
                yield f"{number}: {match[1]}"


def texts() -> Iterator[tuple[str, str]]:
    for path in sorted(tracked()):
        if not INVENTED.match(path):
            with contextlib.suppress(UnicodeDecodeError):  # a binary file names nothing
                yield path, (ROOT / path).read_text(encoding="utf-8")


def test_what_files_name_is_there() -> None:
    assert [f"{path}:{one}" for path, text in texts() for one in stale(text)] == []


def test_stale_names_are_found() -> None:
    text = 'python -m cedana_sched.gone\npatch("cedana_sched.retrying.no_such_name")\nsee tools/gone.sh\n'
    assert list(stale(text)) == ["1: cedana_sched.gone", "2: cedana_sched.retrying.no_such_name", "3: tools/gone.sh"]
    assert list(stale('cedana_sched.retrying.Backoff, tests.unit.house, "cedana_sched.adapters", tools/venv.sh')) == []
