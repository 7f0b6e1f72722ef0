"""Objects of our kinds are decoded as one package defines them, so that all components read the same of them."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names
from tests.unit.house.product_modules import product_modules

DEFINED = "cedana_sched.kube.own_kinds."
GIVEN = {
    "cedana_sched.cluster.coordinator.journal": "a record has every field: `to_record` parses what is read as `dict`",
}
"""Modules that decode our kinds in another way, and why."""


def _value(module: ModuleType, node: ast.expr) -> object:
    return getattr(module, node.id, None) if isinstance(node, ast.Name) else None


def _is_ours(kind: object) -> bool:
    return isinstance(kind, Resource) and kind.group_version.startswith(f"{names.GROUP}/")


def _types(call: ast.Call) -> Iterator[ast.expr]:
    """What the call decodes into: `into`, and the third argument of a watch, or of `read`."""
    yield from (one.value for one in call.keywords if one.arg == "into")
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    if name in {"Watch", "read"}:
        yield from call.args[2:3]


def strangers(name: str, text: str) -> set[str]:
    """The types, defined elsewhere, into which a module decodes objects of our kinds."""
    found = set[str]()
    module: ModuleType | None = None
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or not (types := list(_types(call))):
            continue
        module = module or importlib.import_module(name)
        if any(_is_ours(_value(module, one)) for one in call.args):
            for one in types:
                kind = _value(module, one)
                is_defined = isinstance(kind, type) and kind.__module__.startswith(DEFINED)
                if not is_defined and kind is not PartialObject and not _is_answer_ignored(call, one):
                    found.add(ast.unparse(one))
    return found


def _is_answer_ignored(call: ast.Call, into: ast.expr) -> bool:
    """Whether it is a write, whose answer nobody reads: `dict` stands for that."""
    is_write = isinstance(call.func, ast.Attribute) and call.func.attr in {"create", "update", "patch"}
    return is_write and isinstance(into, ast.Name) and into.id == "dict"


def test_our_kinds_are_decoded_as_one_package_defines_them() -> None:
    found = {name: strangers(name, path.read_text(encoding="utf-8")) for name, path in product_modules()}
    assert {name: types for name, types in found.items() if types and name not in GIVEN} == {}


@pytest.mark.parametrize(
    ("read", "is_strange"),
    [
        ("Watch(api, CHECKPOINTS, KnownCheckpoint)", False),
        ("Watch(api, CHECKPOINTS, Node)", True),
        ("Watch(api, CHECKPOINTS, _Mine, labels='a=b')", True),
        ("Watch(api, NODES, Node)", False),
        ("api.list_all(CHECKPOINTS, into=_Mine)", True),
        ("api.find(CHECKPOINTS, name, namespace, into=KnownCheckpoint)", False),
        ("read(CHECKPOINTS, body, _Mine)", True),
        ("api.create(CHECKPOINTS, body, into=dict)", False),
        ("api.get(CHECKPOINTS, name, namespace, into=dict)", True),
    ],
)
def test_what_is_found(read: str, is_strange: bool) -> None:
    assert bool(strangers("cedana_sched.cluster.coordinator.leading_coordinator", read)) is is_strange
