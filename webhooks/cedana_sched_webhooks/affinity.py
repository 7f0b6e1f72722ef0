"""Which nodes a pod may go to, beside what it asks for itself."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cedana_sched.kube.client import Object


def require_label(pod: Object, label: str, value: str) -> None:
    """Only nodes with that label."""
    selector = pod["spec"].get("nodeSelector") or {}
    pod["spec"]["nodeSelector"] = {**selector, label: value}


def require_one_of(pod: Object, label: str, values: Collection[str]) -> None:
    """Only nodes whose label has one of the values. A requirement that is there already is not added again."""
    requirement = {"key": label, "operator": "In", "values": sorted(values)}
    affinity = _child(pod["spec"], "affinity")
    required = _child(_child(affinity, "nodeAffinity"), "requiredDuringSchedulingIgnoredDuringExecution")
    terms: list[dict[str, Any]] = required.get("nodeSelectorTerms") or []
    if not terms:
        required["nodeSelectorTerms"] = [{"matchExpressions": [requirement]}]
    for term in terms:  # a node must match one of the terms: so each of them gets it
        if term.get("matchExpressions") or term.get("matchFields"):  # an empty term matches nothing, and shall not
            expressions = term.get("matchExpressions") or []
            if requirement not in expressions:
                term["matchExpressions"] = [*expressions, requirement]


def _child(parent: dict[str, Any], key: str) -> dict[str, Any]:
    child: dict[str, Any] = parent.get(key) or {}
    parent[key] = child
    return child
