"""The folders of tests mirror the product's packages."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NO_PACKAGES = {
    "unit/adapters": "all adapters have them in common",
    "unit/demo": "make demo",
    "unit/harness": "the tests' own cluster, benchmarks and judge",
    "unit/house": "the rules of this repository",
    "unit/manifests": "the chart",
    "unit/tools": "scripts of this repository",
    "unit/workloads": "programs that tests preempt",
    "integration/harness": "what tests look for on this machine",
    "integration/local/engine": "the module",
    "integration/tools": "scripts of this repository",
    "integration/workloads": "programs that tests preempt",
}
"""Folders that no package corresponds to, and what they test."""


def package_of(folder: Path) -> Path:
    """The folder of the package that the tests of this one are named after."""
    match folder.parts:
        case ("adapters", name, *rest):
            return ROOT / "adapters" / name / f"cedana_sched_{name}" / Path(*rest)
        case ("webhooks", *rest):
            return ROOT / "webhooks" / "cedana_sched_webhooks" / Path(*rest)
        case _:
            return ROOT / "cedana_sched" / folder


def folders(kind: str) -> set[str]:
    """Those that hold tests, and those above them, below `tests/<kind>`."""
    top = ROOT / "tests" / kind
    holding = {file.parent.relative_to(top) for file in top.rglob("test_*.py")}
    return {str(one) for folder in holding for one in (folder, *folder.parents)} - {"."}


@pytest.mark.parametrize("kind", ["unit", "integration"])
def test_each_folder_is_named_after_a_package(kind: str) -> None:
    named = {folder for folder in folders(kind) if (package_of(Path(folder)) / "__init__.py").is_file()}
    others = {f"{kind}/{folder}" for folder in folders(kind) - named}
    assert others == {name for name in NO_PACKAGES if name.startswith(f"{kind}/")}
