"""Label and field selectors of lists and watches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cedana_sched.kube.client import Object

_TERMS = re.compile(r",(?![^(]*\))")
"""Separates terms, but not the values of `in (a,b)`."""
_SET = re.compile(r"(\S+) (in|notin) \((.*)\)")


def selects(body: Object, namespace: str | None, query: Mapping[str, str]) -> bool:
    """Return whether a list or watch of a namespace (None: of all) with these selectors shows the object."""
    metadata = body["metadata"]
    return (
        namespace in {None, metadata.get("namespace")}
        and all(_has_label(metadata.get("labels") or {}, term) for term in _terms(query.get("labelSelector", "")))
        and all(_has_field(body, term) for term in _terms(query.get("fieldSelector", "")))
    )


def _terms(selector: str) -> list[str]:
    return [term.strip() for term in _TERMS.split(selector) if term.strip()]


def _has_label(labels: Mapping[str, str], term: str) -> bool:
    if found := _SET.fullmatch(term):
        name, operator, values = found.groups()
        return (labels.get(name) in [value.strip() for value in values.split(",")]) is (operator == "in")
    if term.startswith("!"):
        return term[1:] not in labels
    name, equals, value = term.partition("=")
    if not equals:
        return name in labels
    return (labels.get(name.removesuffix("!")) == value.removeprefix("=")) is not name.endswith("!")


def _has_field(body: Object, term: str) -> bool:
    """Return whether `a.b=value` or `a.b!=value` holds; an absent field is empty."""
    name, _, value = term.partition("=")
    found: Any = body
    for part in name.removesuffix("!").split("."):
        found = found.get(part) or {}
    return (str(found or "") == value.removeprefix("=")) is not name.endswith("!")
