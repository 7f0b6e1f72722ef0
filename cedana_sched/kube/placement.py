"""Which nodes can continue a snapshot, and how a pod is told to go to no other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.watching import HasMetadata
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.objects import names

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def facts_of(node: Metadata) -> Compatibility | None:
    """What a node's agent says of it; None when it says nothing, or what a newer agent says."""
    return _facts(node.annotations.get(names.NODE_FACTS, ""))


@lru_cache(maxsize=1_024)  # nodes of one kind say the same
def _facts(text: str) -> Compatibility | None:
    try:
        return msgspec.json.decode(text, type=Compatibility)
    except (ValueError, RecursionError):
        return None


def cpus_that_can_continue(taken_on: str, nodes: Collection[HasMetadata]) -> tuple[str, ...] | None:
    """Values of the label `names.CPU_FEATURES` of nodes that can continue what was frozen on the node of that name.

    Returns:
        In order; None when that node is gone or has said nothing: then nobody can tell.
    """
    needed = next((facts_of(node.metadata) for node in nodes if node.metadata.name == taken_on), None)
    return None if needed is None else _able(needed, nodes)


def _able(needed: Compatibility, nodes: Iterable[HasMetadata]) -> tuple[str, ...]:
    kinds = {
        (node.metadata.labels.get(names.CPU_FEATURES, ""), node.metadata.annotations.get(names.NODE_FACTS, ""))
        for node in nodes
    }
    able = {label for label, text in kinds if label and (facts := _facts(text)) and not needed.reasons_against(facts)}
    return tuple(sorted(able))


def require_label(spec: Object, label: str, value: str) -> None:
    """Have a pod's spec name only nodes with that label."""
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), label: value}


def require_one_of(spec: Object, label: str, values: Collection[str]) -> None:
    """Have a pod's spec name only nodes whose label has one of the values; the second time it changes nothing.

    What is within the spec is replaced where it changes, and never changed itself.
    """
    requirement = {"key": label, "operator": "In", "values": sorted(values)}
    affinity = dict(spec.get("affinity") or {})
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    required = dict(of_nodes.get(_REQUIRED) or {})
    # a node must match one of the terms: so each of them gets it
    terms = [_with(term, requirement) for term in required.get("nodeSelectorTerms") or ()]
    required["nodeSelectorTerms"] = terms or [{"matchExpressions": [requirement]}]
    of_nodes[_REQUIRED] = required
    affinity["nodeAffinity"] = of_nodes
    spec["affinity"] = affinity


def _with(term: dict[str, Any], requirement: dict[str, Any]) -> dict[str, Any]:
    """An empty term matches nothing, and shall not."""
    expressions = term.get("matchExpressions") or []
    if not (expressions or term.get("matchFields")) or requirement in expressions:
        return term
    return {**term, "matchExpressions": [*expressions, requirement]}
