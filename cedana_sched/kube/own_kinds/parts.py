"""What objects of several of our kinds have in common.

Components cache thousands of objects. So the Structs are without the header by which Python's garbage collector finds
cycles (a decoded object has none), and texts that many objects share are interned.
"""

from __future__ import annotations

import sys

import msgspec

from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity
from cedana_sched.model.objects.field_names import api_name

_ANY_NAMESPACE = "any"
"""Placeholder: the API server validates namespace names."""


class PartialStruct(msgspec.Struct, frozen=True, rename=api_name, gc=False):
    """Base of what is read of our kinds; other fields are skipped."""


def intern_texts(read: PartialStruct, *fields: str) -> None:
    """Share texts of an object that is being decoded with other objects."""
    for field in fields:
        msgspec.structs.force_setattr(read, field, sys.intern(getattr(read, field)))


class IdentitySpec(PartialStruct, frozen=True):
    """Identity in a spec. Raises ValueError if malformed, so that the object is not read."""

    id: str
    index: int = 0
    container: str = "main"

    def __post_init__(self) -> None:
        _check_identity(self)


class SnapshotName(PartialStruct, frozen=True):
    """A generation of an identity of the object's namespace; validated like `IdentitySpec`."""

    generation: int
    id: str
    index: int = 0
    container: str = "main"

    def __post_init__(self) -> None:
        _check_identity(self)


def _check_identity(named: IdentitySpec | SnapshotName) -> None:
    try:
        Identity(_ANY_NAMESPACE, named.id, named.index, named.container)
    except UsageError as error:
        raise ValueError(str(error)) from error
    intern_texts(named, "container")


class PodRef(PartialStruct, frozen=True):
    """The pod that the object is about."""

    uid: str = ""
    node_name: str = ""

    def __post_init__(self) -> None:
        """Share the node's name."""
        intern_texts(self, "node_name")
