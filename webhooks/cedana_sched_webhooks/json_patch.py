"""Compute a JSON patch (RFC 6902) from two versions of an object."""

from __future__ import annotations

from collections.abc import Iterator

from cedana_sched.kube.client import Object


def patch_operations(before: object, after: object, path: str = "") -> Iterator[Object]:
    """Yield the operations that turn `before` into `after`; both are decoded JSON.

    Lists of equal length are compared element by element; one element prepended, or elements appended, become
    additions; any other changed list is replaced. Parts that are the same Python object are skipped.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield {"op": "remove", "path": f"{path}/{escape_pointer_segment(key)}"}
        for key, value in after.items():
            if key in before and before[key] is value:
                continue
            below = f"{path}/{escape_pointer_segment(key)}"
            if key not in before:
                yield {"op": "add", "path": below, "value": value}
            else:
                yield from patch_operations(before[key], value, below)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _list_difference(before, after, path)
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": path, "value": after}


def _list_difference(before: list[object], after: list[object], path: str) -> Iterator[Object]:
    if len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if old is not new:
                yield from patch_operations(old, new, f"{path}/{index}")
    elif before and len(after) == len(before) + 1 and after[1:] == before:
        yield {"op": "add", "path": f"{path}/0", "value": after[0]}
    elif before and after[: len(before)] == before:
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": value}
    else:
        yield {"op": "replace", "path": path, "value": after}


def escape_pointer_segment(key: str) -> str:
    """Escape a key as a segment of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
