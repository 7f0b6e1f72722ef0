"""References to modules, files and names in texts, strings and code of other languages lead somewhere.

mypy finds a stale import. It finds no stale name in `python -m`, in `monkeypatch.setattr("module.name")`, in a program
in a string, in a script, or on a page.
"""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.tracked import tracked_files

ROOT = Path(__file__).resolve().parents[3]
ROOTS = {
    "cedana_sched_armada": "adapters.armada.",
    "cedana_sched_kubernetes": "adapters.kubernetes.",
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
ELSEWHERE = {"Task.cancelling": "asyncio's", "model.ubj": "a file of XGBoost"}
SPEAKS_OF_VALUES = re.compile(r".*(?<!\.py)$|tests/unit/manifests/")

_MODULE = re.compile(r"\b((?:cedana_sched(?:_[a-z]+)?|tests)(?:\.[a-z_][a-z0-9_]*)+)\b(?!/)")
_FILE = re.compile(
    r"(?<![\w/.-])((?:adapters|cedana_sched|demo|manifests|tests|tools|webhooks)/[\w./-]+\.(?:md|py|sh|yaml))\b"
)
_IMPORT = re.compile(r"\bfrom (cedana_sched[\w.]*) import ([\w, ]+)")
_CLASS = re.compile(r"^class (\w+)", re.MULTILINE)
_QUOTED = re.compile(r"`((?:[A-Za-z_]\w*[./])+[A-Za-z_]\w*)(?:\(\))?`")
_SUFFIXES = (".json", ".log", ".md", ".py", ".service", ".sh", ".toml", ".txt", ".yaml")


@cache
def tracked() -> frozenset[str]:
    return frozenset(tracked_files(ROOT))


@cache
def folders() -> frozenset[str]:
    return frozenset(str(parent) for name in tracked() for parent in Path(name).parents)


@cache
def words_of(path: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", (ROOT / path).read_text(encoding="utf-8")))


def is_there(name: str) -> bool:
    """Whether a dotted name is a folder, a module, or a name that the text of its longest module has."""
    parts = (ROOTS.get(name.partition(".")[0], "") + name).split(".")
    for length in range(len(parts), 0, -1):
        place, rest = "/".join(parts[:length]), parts[length:]
        file = next((one for one in (f"{place}.py", f"{place}/__init__.py") if one in tracked()), None)
        if file is not None:
            return not rest or rest[0].startswith("__") or rest[0] in words_of(file)
        if place in folders():
            return not rest
    return False


@cache
def modules() -> dict[str, list[str]]:
    """Files of Python by the last part of the module's or package's name."""
    found = defaultdict[str, list[str]](list)
    for name in tracked():
        path = Path(name)
        if path.suffix == ".py" and not INVENTED.match(name):
            found[path.parent.name if path.stem == "__init__" else path.stem].append(name)
    return found


@cache
def classes() -> dict[str, list[str]]:
    """Files that define a class, by its name."""
    found = defaultdict[str, list[str]](list)
    for name in (one for names in modules().values() for one in names):
        for match in _CLASS.finditer((ROOT / name).read_text(encoding="utf-8")):
            found[match[1]].append(name)
    return found


def is_short_name_there(name: str) -> bool:
    """Whether the short form of a name leads somewhere: `store/pages.py`, `store.pages`, `pages.Run`, `Run.take`.

    True of names that look like none of these.
    """
    first, *rest = re.split(r"[./]", name)
    if name in ELSEWHERE or ("/" not in name and name.endswith(_SUFFIXES)):
        return True
    if f"cedana_sched/{first}" in folders():
        if "/" in name:
            place = f"cedana_sched/{name}"
            return place in tracked() or place in folders() or not name.endswith((".py", ".sh"))
        return is_there(f"cedana_sched.{name}")
    if "/" in name:
        return True
    owners = classes().get(first) if first[0].isupper() else modules().get(first)
    if owners is None:
        return not (first.islower() and rest[0][0].isupper() and rest[0] in classes())
    if first[0].isupper() or rest[0][0].isupper():
        return any(rest[0] in words_of(name) for name in owners)
    return True


def stale(text: str, *, is_code: bool = True) -> Iterator[str]:
    """Stale names. Where values of the chart are named, `agent.cacheBytes` is one."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in _MODULE.finditer(line):
            if not match[1].endswith(_SUFFIXES) and match[1] not in NO_MODULES and not is_there(match[1]):
                yield f"{number}: {match[1]}"
        for match in _IMPORT.finditer(line):
            names = [f"{match[1]}.{name}" for name in re.findall(r"\w+", match[2].partition(" as ")[0])]
            yield from (f"{number}: {name}" for name in names if name not in NO_MODULES and not is_there(name))
        for match in _QUOTED.finditer(line):
            if (is_code or "/" in match[1]) and not is_short_name_there(match[1]):
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
    assert [
        f"{path}:{one}" for path, text in texts() for one in stale(text, is_code=SPEAKS_OF_VALUES.match(path) is None)
    ] == []


def test_stale_names_are_found() -> None:
    assert list(stale("code='from cedana_sched.kube import gone'\n")) == ["1: cedana_sched.kube.gone"]
    text = 'python -m cedana_sched.gone\npatch("cedana_sched.retrying.no_such_name")\nsee tools/gone.sh\n'
    assert list(stale(text)) == ["1: cedana_sched.gone", "2: cedana_sched.retrying.no_such_name", "3: tools/gone.sh"]
    short = "see `retrying.Gone`, `kube.gone`, `kube/gone.py`, `Backoff.gone` and `gone.Backoff`\n"
    assert list(stale(short)) == [
        "1: retrying.Gone",
        "1: kube.gone",
        "1: kube/gone.py",
        "1: Backoff.gone",
        "1: gone.Backoff",
    ]
    assert list(stale("`retrying.Backoff`, `kube.client`, `kube/client.py`, `spec.pods`, `Backoff.pause`")) == []
    assert list(stale('cedana_sched.retrying.Backoff, tests.unit.house, "cedana_sched.adapters", tools/venv.sh')) == []
