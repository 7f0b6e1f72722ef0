"""The chart's README names values that there are, with the defaults that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "manifests" / "chart"
README = (CHART / "README.md").read_text()


def values() -> dict[str, Any]:
    """Every value by its dotted name, tables of them as well."""
    found: dict[str, Any] = {}

    def collect(name: str, value: Any) -> None:
        found[name] = value
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{name}.{key}" if name else key, inner)

    collect("", yaml.safe_load((CHART / "values.yaml").read_text()))
    return found


def rows() -> dict[str, str]:
    """The table of values: what stands in the column of defaults, by the value's name."""
    section = README.split("\n## Values\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| `([^`|]+)` \| (?:`([^`|]*)` )?\|", section, re.MULTILINE)
    assert len(cells) == len(re.findall(r"^\| `", section, re.MULTILINE)), "a row of another form"
    return dict(cells)


def written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_the_table_names_values_and_their_defaults() -> None:
    assert rows()
    known = values()
    assert {name: written(known.get(name, "there is no such value")) for name in rows()} == rows()


def test_the_commands_set_values_that_there_are() -> None:
    named = set(re.findall(r"--set ([\w.]+)=", README)) | set(re.findall(r"`([\w.]+)=", README))
    assert {"storage.s3.bucket", "storage.posix.path", "storage.posix.existingClaim", "crds.keep"} <= named
    assert named <= values().keys()
