"""Nodes that can restore a snapshot, and the node affinity that confines a pod to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any, Final

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.client import Object
from cedana_sched.kube.watching import HasMetadata
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.objects import names

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def facts_of(node: Metadata) -> Compatibility | None:
    """Return the facts that the node's agent publishes; None if there are none, or a newer agent's format."""
    return _decode_facts(node.annotations.get(names.NODE_FACTS, ""))


@lru_cache(maxsize=1_024)  # nodes of one type have equal values
def _decode_facts(text: str) -> Compatibility | None:
    try:
        return msgspec.json.decode(text, type=Compatibility)
    except (ValueError, RecursionError):
        return None


def cpus_that_can_continue(taken_on: str, nodes: Collection[HasMetadata]) -> tuple[str, ...] | None:
    """Return the values of the label `names.CPU_FEATURES` of nodes that can restore a snapshot.

    Returns:
        Sorted; None if the node `taken_on` is gone or has published nothing, so that compatibility is unknown.
    """
    needed = next((facts_of(node.metadata) for node in nodes if node.metadata.name == taken_on), None)
    return None if needed is None else _compatible_cpu_labels(needed, nodes)


def _compatible_cpu_labels(needed: Compatibility, nodes: Iterable[HasMetadata]) -> tuple[str, ...]:
    kinds = {
        (node.metadata.labels.get(names.CPU_FEATURES, ""), node.metadata.annotations.get(names.NODE_FACTS, ""))
        for node in nodes
    }
    able = {
        label for label, text in kinds if label and (facts := _decode_facts(text)) and not needed.reasons_against(facts)
    }
    return tuple(sorted(able))


def require_label(spec: Object, label: str, value: str) -> None:
    """Confine a pod's spec to nodes with that label."""
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), label: value}


def require_node_label(spec: Object, label: str, values: Collection[str]) -> None:
    """Confine a pod's spec to nodes whose label has one of the values. Idempotent.

    Nested objects are replaced, never mutated.
    """
    requirement = {"key": label, "operator": "In", "values": sorted(values)}
    affinity = dict(spec.get("affinity") or {})
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    required = dict(of_nodes.get(_REQUIRED) or {})
    # a node must match one of the terms, so each of them needs the requirement
    terms = [_add_requirement(term, requirement) for term in required.get("nodeSelectorTerms") or ()]
    required["nodeSelectorTerms"] = terms or [{"matchExpressions": [requirement]}]
    of_nodes[_REQUIRED] = required
    affinity["nodeAffinity"] = of_nodes
    spec["affinity"] = affinity


def _add_requirement(term: dict[str, Any], requirement: dict[str, Any]) -> dict[str, Any]:
    """Add the requirement to a term; an empty term matches no node, and must stay so."""
    expressions = term.get("matchExpressions") or []
    if not (expressions or term.get("matchFields")) or requirement in expressions:
        return term
    return {**term, "matchExpressions": [*expressions, requirement]}
