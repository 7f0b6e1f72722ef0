"""What nothing but tests uses is found, unless a reason stands in the list, and the reason is needed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.house.test_generated_docs import load

_USED = "def main():\n    print(One().shown)\n\nmain()\n"


@pytest.fixture(scope="module")
def check_unused() -> ModuleType:
    return load("check_unused")


def _found(check_unused: ModuleType, root: Path, text: str) -> list[str]:
    for name, code in {"cedana_sched/x.py": text, "demo/y.py": _USED, "tests/test_x.py": "One().hidden()"}.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(code)
    return [f"{one.kind} {one.name}" for one in check_unused.unused(root)]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("shown = 1", []),
        ("shown = 1\n    def hidden(self): ...", ["method hidden"]),
        ("shown = 1\n    hidden: int = 2", ["variable hidden"]),
        ("shown = 1\n    @field_validator('shown')\n    def hidden(self): ...", []),
    ],
)
def test_what_only_a_test_uses(check_unused: ModuleType, tmp_path: Path, body: str, found: list[str]) -> None:
    assert _found(check_unused, tmp_path, f"class One:\n    {body}\n") == found


def test_reasons(check_unused: ModuleType) -> None:
    item = check_unused.Item("cedana_sched/x.py", 7, "method", "hidden")
    (complaint,) = check_unused.complaints([item], ())
    assert complaint.startswith("cedana_sched/x.py:7: method hidden is used by no code but tests")
    reason = check_unused.Used("why", "cedana_sched/*", ("hid*",))
    assert list(check_unused.complaints([item], (reason,))) == []
    (complaint,) = check_unused.complaints([], (reason,))
    assert "need not name hid* of cedana_sched/*" in complaint
    assert len(list(check_unused.complaints([item], (reason._replace(path="webhooks/*"),)))) == 2
