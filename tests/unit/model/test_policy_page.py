"""docs/operations.md tells of every field of a policy, with its default and the words that may stand there."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path

from cedana_sched.model.policy import CheckpointPolicy, Retention

PAGE = (Path(__file__).parents[3] / "docs/operations.md").read_text()
SECTION = PAGE.split("\n## Policies\n")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \| `?([^|`]*)`? \|$", SECTION, re.MULTILINE)


def shown(default: object) -> str:
    if isinstance(default, Retention):
        return str(default.keep_last)
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def test_the_page_has_every_field_of_a_policy_with_its_default() -> None:
    defaults = {field.alias or name: shown(field.default) for name, field in CheckpointPolicy.model_fields.items()}
    assert {name: default for name, _, default in ROWS} == defaults


def test_the_page_has_every_word_of_a_policy() -> None:
    told = {name: re.findall(r"`(\w+)`", meaning) for name, meaning, _ in ROWS}
    for name, field in CheckpointPolicy.model_fields.items():
        if isinstance(field.default, StrEnum):
            assert told[field.alias or name] == [str(word) for word in type(field.default)]
    (retention,) = (meaning for name, meaning, _ in ROWS if name == "retention")
    assert re.findall(r"(\w+) =", retention) == [field.alias for field in Retention.model_fields.values()]
