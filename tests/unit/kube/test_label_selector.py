"""A LabelSelector selects what the API server would select by it."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.kube.label_selector import selects

LABELS = {"app": "md", "tier": "sim"}


def by(operator: str, key: str = "app", *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "md"}}, True),
        ({"matchLabels": {"app": "md", "tier": "web"}}, False),
        ({"matchLabels": None, "matchExpressions": None}, True),
        (by("In", "app", "md", "ml"), True),
        (by("In", "app", "ml"), False),
        (by("In", "absent", "md"), False),
        (by("NotIn", "app", "ml"), True),
        (by("NotIn", "app", "md"), False),
        (by("NotIn", "absent", "md"), True),
        (by("Exists"), True),
        (by("Exists", "absent"), False),
        (by("DoesNotExist"), False),
        (by("DoesNotExist", "absent"), True),
        (by("Near"), False),
        ({"matchLabels": {"tier": "sim"}, **by("NotIn", "app", "md")}, False),
    ],
)
def test_selector_selects_as_the_api_server(selector: dict[str, Any] | None, is_selected: bool) -> None:
    assert selects(selector, LABELS) is is_selected
