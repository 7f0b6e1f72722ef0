"""Each refusal of the chart's templates names the field, its value and a remedy; the schema's name field and form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

CHART: Final = Path(__file__).parents[3] / "manifests/chart"
_REFUSAL: Final = re.compile(r'fail (?:\(printf )?"((?:[^"\\]|\\.)*)"')
_FORM: Final = re.compile(r"(?P<field>[\w.%]+): (?P<value>\S+) (?P<problem>.+); (?P<remedy>.{5,})")


def refusals() -> Iterator[str]:
    for template in sorted((CHART / "templates").rglob("*.*")):
        yield from (text.replace('\\"', '"') for text in _REFUSAL.findall(template.read_text()))


def fields_of(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from fields_of(value, f"{prefix}{name}.")


def test_all_refusals_are_found() -> None:
    templates = "".join(one.read_text() for one in (CHART / "templates").rglob("*.*"))
    assert len(list(refusals())) == len(re.findall(r"\bfail\b [(\"]", templates)) > 20


@pytest.mark.parametrize("text", list(refusals()))
def test_refusal_names_field_value_and_remedy(text: str) -> None:
    said = _FORM.fullmatch(text)
    assert said is not None, text
    field = re.compile(re.escape(said["field"]).replace("%s", r"[\w]+"))
    free = ("coordinator.adapterSettings.", "policy.spec.")  # their contents are no values of the chart
    fields = set(fields_of(yaml.safe_load((CHART / "values.yaml").read_text())))
    assert said["field"].startswith(free) or any(map(field.fullmatch, fields)), text
