"""Bounds on how much of one object is read, and how much of it is cached.

The API server accepts objects of some MiB of JSON from any client that may create one, and a list of tiny elements
takes ten times that in memory. Fields that no component reads are skipped while decoding; the remaining fields are
bounded, above what any legitimate object needs: Kubernetes allows 256 KiB of annotations, and Linux 128 KiB for each
argument and variable.

Our own kinds are not bounded: only our components write them, and their size grows with their gang.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names

LARGEST_BYTES: Final = 1 << 20
"""Bytes of JSON that are read of one object."""
LARGEST_KEPT_BYTES: Final = 32 << 10
"""Bytes of JSON that are cached of one object."""

_DEPTH: Final = 2
"""Depth of the nesting whose fields are fixed by the kind; below it, a map or list may have any number of elements."""


def is_bounded(resource: Resource) -> bool:
    """Return whether objects of the kind are bounded: clients other than ours may write them."""
    return resource.namespaced and not resource.group_version.startswith(f"{names.GROUP}/")


def oversize_reason(resource: Resource, body: bytes | msgspec.Raw) -> str | None:
    """Return why an object is too large to be read, or None."""
    size = memoryview(body).nbytes
    if size <= LARGEST_BYTES or not is_bounded(resource):
        return None
    return f"it has {size} bytes, and {LARGEST_BYTES} at most are read: most of them are in {_largest_field(body)}"


def cache_oversize_reason(resource: Resource, found: object) -> str | None:
    """Return why a decoded object is too large to be cached, or None."""
    if not is_bounded(resource):
        return None
    body = msgspec.json.encode(found)
    if len(body) <= LARGEST_KEPT_BYTES:
        return None
    where = _largest_field(body)
    return f"it has {len(body)} bytes that matter here, and at most {LARGEST_KEPT_BYTES} can be kept: shorten {where}"


def _largest_field(body: bytes | msgspec.Raw) -> str:
    """Return the path of the largest field, such as `spec.containers`."""
    path: list[str] = []
    for _ in range(_DEPTH):
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (ValueError, RecursionError):  # not an object at this depth
            break
        name, body = max(fields.items(), key=lambda field: memoryview(field[1]).nbytes, default=("", b""))
        path.append(name)
    return ".".join(path) or "nothing"
