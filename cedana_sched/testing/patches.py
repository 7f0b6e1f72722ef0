"""JSON merge patches (RFC 7386) and JSON patches (RFC 6902), as far as API servers are sent them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from cedana_sched.kube.client import Object


def merge(target: Object, patch: Object) -> None:
    """Merge a patch into an object, in place."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            into = target.get(name)
            target[name] = into if isinstance(into, dict) else {}
            merge(target[name], value)
        else:
            target[name] = copy.deepcopy(value)


def apply_json_patch(body: Object, operations: Iterable[Object]) -> Object:
    """Return the object after a JSON patch of `add`, `remove`, `replace` and `test`.

    Raises:
        LookupError: the patch does not fit.
    """
    result: Any = copy.deepcopy(body)
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target = result
        for part in way:
            target = target[int(part)] if isinstance(target, list) else target[part]
        if isinstance(target, list):
            _operate_on_list(target, last, operation)
        else:
            _operate(target, last, operation)
    return result  # type: ignore[no-any-return]


def _operate(target: Object, name: str, operation: Object) -> None:
    kind, value = operation["op"], copy.deepcopy(operation.get("value"))
    if kind == "add" or (kind == "replace" and name in target):
        target[name] = value
    elif kind == "remove":
        del target[name]
    elif kind != "test" or target.get(name) != value:
        raise LookupError(f"{kind} {operation['path']}")


def _operate_on_list(target: list[Any], place: str, operation: Object) -> None:
    kind, value = operation["op"], copy.deepcopy(operation.get("value"))
    index = len(target) if place == "-" else int(place)
    if kind == "add":
        target.insert(index, value)
    elif kind == "replace":
        target[index] = value
    elif kind == "remove":
        del target[index]
    elif kind != "test" or target[index] != value:
        raise LookupError(f"{kind} {operation['path']}")
