"""Whether a LabelSelector of an object selects a set of labels, as the API server decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether the selector selects the labels. None selects nothing, an empty selector everything.

    A selector that the API server would reject selects nothing.
    """
    if selector is None:
        return False
    expressions = selector.get("matchExpressions") or ()
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _is_met(one.get("operator"), one.get("values") or (), labels.get(one.get("key", ""))) for one in expressions
    )


def _is_met(operator: str | None, values: Sequence[str], found: str | None) -> bool:
    match operator:
        case "In":
            return found is not None and found in values
        case "NotIn":
            return found is None or found not in values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case _:
            return False
