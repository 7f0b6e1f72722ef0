"""docs/write-an-adapter.md is followed word by word: its files, its installation, its command."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from cedana_sched.adapter.conformance import AdapterConformance
from tests.unit.adapter.conformance import toy_page

ROOT = Path(__file__).resolve().parents[3]
STARTS = 3
"""Tests of starts, which the page's scheduler leaves to others."""
INSTALL, TEST = "pip install . pytest pytest-asyncio", "pytest test_toy.py"


async def run(*arguments: str, cwd: Path, path: tuple[Path, ...] = ()) -> str:
    """What a command of this interpreter says; it must succeed."""
    search = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *arguments,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": search, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


def test_the_page_says_what_is_tried_here() -> None:
    assert toy_page.commands() == [INSTALL, TEST]
    assert list(toy_page.files()) == [
        "toy_scheduler.py",
        "toy_adapter.py",
        "pyproject.toml",
        "toy_stage.py",
        "test_toy.py",
    ]


async def test_who_follows_the_page_has_an_adapter_that_keeps_the_contract(tmp_path: Path) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    project.mkdir()
    for name, text in toy_page.files().items():
        (project / name).write_text(text)
    # into a folder of its own, and without what this environment has: nothing is fetched
    into = ("--target", str(site), "--no-index", "--no-deps", "--no-build-isolation", "--quiet")
    await run("pip", "install", *into, ".", cwd=project)

    found = "from cedana_sched.adapter.registry import load; print(load('toy').__module__)"
    (project / "find.py").write_text(found)
    said = await run("find", cwd=project, path=(site, ROOT))
    assert said.split() == ["toy_adapter"]

    said = await run(*TEST.split(), "-p", "no:cacheprovider", cwd=project, path=(site, ROOT))
    tests = [name for name in dir(AdapterConformance) if name.startswith("test_")]
    assert f"{len(tests) - STARTS} passed, {STARTS} skipped" in said, said
