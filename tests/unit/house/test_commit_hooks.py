"""Before a commit the same checks run as in `make lint`, by the tools that are installed here, without a network."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
_RECIPE = re.compile(r"^lint:.*\n((?:\t.*\n)+)", re.MULTILINE)
_COMMAND = re.compile(r"@\$\(BIN\)/(.*?)(?: >.*| \|\| .*)?")


def checks_of_lint() -> list[str]:
    recipe = _RECIPE.search((ROOT / "Makefile").read_text())
    assert recipe is not None
    lines = (_COMMAND.fullmatch(line.strip()) for line in recipe[1].splitlines())
    return [f".venv/bin/{line[1]}" for line in lines if line is not None]


def test_a_commit_is_checked_as_lint_checks() -> None:
    configuration = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repository,) = configuration["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == checks_of_lint()


def test_each_check_looks_at_all_files_of_a_commit() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repository["hooks"]:
        assert (hook["language"], hook["pass_filenames"], hook["always_run"]) == ("system", False, True), hook["id"]
