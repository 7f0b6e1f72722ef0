"""How much of one object is read, and how much of it is kept.

The API server takes objects of some MiB as JSON, from anybody who may create one, and what a list of tiny elements
takes in memory is ten times that. What nobody reads is skipped already when an object is read; of the rest there is a
bound, which no object reaches that somebody means: Kubernetes allows 256 KiB of annotations, and Linux 128 KiB of each
argument and variable.

Our own kinds have none: only we write them, and they grow with the gangs that they are about.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.resources import Resource
from cedana_sched.model.objects import names

LARGEST_BYTES: Final = 1 << 20
"""Of an object that is read, as JSON."""
LARGEST_KEPT_BYTES: Final = 32 << 10
"""Of what is kept of it, as JSON."""

_DEPTH: Final = 2
"""So deep an object has the fields of its kind, and no more of them; below, there may be any number."""


def is_bounded(resource: Resource) -> bool:
    """Whether anybody may write objects of the kind."""
    return resource.namespaced and not resource.group_version.startswith(f"{names.GROUP}/")


def too_large(resource: Resource, body: bytes | msgspec.Raw) -> str | None:
    """Why an object is not read; None where it is."""
    size = memoryview(body).nbytes
    if size <= LARGEST_BYTES or not is_bounded(resource):
        return None
    return f"it has {size} bytes, and {LARGEST_BYTES} at most are read: most of them are in {_largest_field(body)}"


def too_much(resource: Resource, found: object) -> str | None:
    """Why an object that was read is not kept; None where it is."""
    if not is_bounded(resource):
        return None
    body = msgspec.json.encode(found)
    if len(body) <= LARGEST_KEPT_BYTES:
        return None
    where = _largest_field(body)
    return f"it has {len(body)} bytes that matter here, and at most {LARGEST_KEPT_BYTES} can be kept: shorten {where}"


def _largest_field(body: bytes | msgspec.Raw) -> str:
    """As a path, such as `spec.containers`."""
    path: list[str] = []
    for _ in range(_DEPTH):
        try:
            fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        except (ValueError, RecursionError):  # it is no object further down
            break
        name, body = max(fields.items(), key=lambda field: memoryview(field[1]).nbytes, default=("", b""))
        path.append(name)
    return ".".join(path) or "nothing"
