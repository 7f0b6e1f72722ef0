"""Each name that others read is spelled in one module: labels, annotations, gates, webhooks, fields of our kinds."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

import pytest
from pydantic import BaseModel

from cedana_sched.model.objects import (
    checkpoint,
    checkpoint_policy,
    checkpoint_storage,
    names,
    preemption_hold,
    restore,
)
from tests.unit.house.product_modules import product_modules

DEFINED = ("cedana_sched.model.objects.", "cedana_sched.model.policy")
"""Where our kinds are defined: their fields' names come from there (`wire_name`)."""
THEIRS = frozenset({"apiVersion", "completionTime", "lastTransitionTime", "nodeName", "startTime"})
"""Fields that Kubernetes' kinds have as well."""
NOT_FIELDS = {
    ("cedana_sched.store.storage_config", "allowHttp"): "a setting of the store's file",
    ("cedana_sched.cluster.node.checkpointable_condition", "lastProbeTime"): "a field of a pod's condition",
    ("cedana_sched.cli.doctor.cluster.webhook_calls", "seccompProfile"): "a field of a pod",
    ("cedana_sched_webhooks.pod_defaults", "seccompProfile"): "the same",
    ("cedana_sched_webhooks.restore_container", "seccompProfile"): "the same",
    ("cedana_sched.kube.label_selector", "matchExpressions"): "a field of Kubernetes' selectors",
    ("cedana_sched.kube.label_selector", "matchLabels"): "the same",
    ("cedana_sched.kube.restore_node_affinity", "matchExpressions"): "a field of a pod's affinity",
    ("cedana_sched_kubernetes.successors", "matchLabels"): "a field of a ReplicaSet's selector",
    ("cedana_sched.adapter.conformance.cluster_stage", "creationTime"): "a fake of the coordinator for adapters' tests",
    ("cedana_sched.adapter.conformance.cluster_stage", "heldObjectRef"): "the same",
    ("cedana_sched.adapter.conformance.cluster_stage", "podUID"): "the same",
}
"""By module and text, why it spells a field's name all the same."""


def _fields(models: Iterable[object], seen: set[type[BaseModel]]) -> Iterator[str]:
    for model in models:
        if isinstance(model, type) and issubclass(model, BaseModel) and model not in seen:
            seen.add(model)
            yield from (field.alias or name for name, field in model.model_fields.items())


def _camel_case_fields() -> frozenset[str]:
    """Of all our kinds; a name of one word says too little."""
    seen = set[type[BaseModel]]()
    kinds = (checkpoint, checkpoint_policy, checkpoint_storage, preemption_hold, restore)
    found = {field for kind in kinds for field in _fields(vars(kind).values(), seen)}
    return frozenset(one for one in found - THEIRS if re.search("[A-Z]", one))


def _texts(tree: ast.AST) -> Iterator[str]:
    """Each text of the code, with the group's name put in; docstrings are no names."""
    told = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told | inner:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(_part(one) for one in node.values)


def _part(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    is_group = isinstance(part, ast.FormattedValue) and ast.unparse(part.value) in {"GROUP", "names.GROUP"}
    return names.GROUP if is_group else "{}"


def keys(text: str) -> set[str]:
    """The labels, annotations, gates, and names of webhooks that a module spells."""
    pattern = re.compile(rf"[a-z0-9.-]+\.{re.escape(names.GROUP)}|{re.escape(names.GROUP)}/[a-z0-9-]+")
    return {one for one in _texts(ast.parse(text)) if pattern.fullmatch(one)}


def fields(text: str) -> set[str]:
    """The fields of our kinds that a module spells."""
    return set(_texts(ast.parse(text))) & _camel_case_fields()


def test_each_key_is_spelled_in_one_module() -> None:
    where = defaultdict[str, set[str]](set)
    for name, path in product_modules():
        for key in keys(path.read_text(encoding="utf-8")):
            where[key].add(name)
    assert {key: modules for key, modules in where.items() if len(modules) > 1} == {}


def test_our_group_is_spelled_in_one_module() -> None:
    spelled = {
        name
        for name, path in product_modules()
        if any(names.GROUP in one for one in _literals(path.read_text(encoding="utf-8")))
    }
    assert spelled == {names.__name__}


def _literals(text: str) -> Iterator[str]:
    tree = ast.parse(text)
    told = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def test_fields_of_our_kinds_are_spelled_where_the_kinds_are_defined() -> None:
    found = {
        (name, field)
        for name, path in product_modules()
        if not name.startswith(DEFINED)
        for field in fields(path.read_text(encoding="utf-8"))
    }
    assert found == NOT_FIELDS.keys()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('x = f"{names.GROUP}/id"', {"sched.cedana.ai/id"}),
        ('x = f"{GROUP}/id"', {"sched.cedana.ai/id"}),
        ('x = "pods.sched.cedana.ai"', {"pods.sched.cedana.ai"}),
        ('x = f"{name}.{GROUP}"', set()),
        ('x = 1\n"""sched.cedana.ai/id"""', set()),
    ],
)
def test_what_is_a_key(text: str, found: set[str]) -> None:
    assert keys(text) == found


def test_what_is_a_field() -> None:
    assert fields('patch = {"status": {"replacedBy": one, "nodeName": two}}') == {"replacedBy"}
