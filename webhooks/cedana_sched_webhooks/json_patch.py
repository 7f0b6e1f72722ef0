"""What turns one object into another, as a JSON patch (RFC 6902)."""

from __future__ import annotations

from collections.abc import Iterator

from cedana_sched.kube.client import Object


def difference(before: object, after: object, path: str = "") -> Iterator[Object]:
    """The operations that make `after` out of `before`, both as JSON says them.

    Lists of equal length are compared one by one, and an element put before or behind the others is added; a list
    that has changed otherwise is replaced. What is the very same object on both sides costs nothing.
    """
    if before is after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() - after.keys():
            yield {"op": "remove", "path": f"{path}/{escape(key)}"}
        for key, value in after.items():
            if key in before and before[key] is value:
                continue
            below = f"{path}/{escape(key)}"
            if key not in before:
                yield {"op": "add", "path": below, "value": value}
            else:
                yield from difference(before[key], value, below)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(before, after, path)
    elif type(before) is not type(after) or before != after:
        yield {"op": "replace", "path": path, "value": after}


def _of_lists(before: list[object], after: list[object], path: str) -> Iterator[Object]:
    if len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            if old is not new:
                yield from difference(old, new, f"{path}/{index}")
    elif before and len(after) == len(before) + 1 and after[1:] == before:
        yield {"op": "add", "path": f"{path}/0", "value": after[0]}
    elif before and after[: len(before)] == before:
        for value in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": value}
    else:
        yield {"op": "replace", "path": path, "value": after}


def escape(key: str) -> str:
    """A key as a segment of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
