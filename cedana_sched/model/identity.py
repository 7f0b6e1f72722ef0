"""Identity of a workload's snapshots: `namespace / id / index / container`; snapshots never cross namespaces.

A namespace is more than its name: it may be deleted and recreated, and another cluster may have one of the same name. A
store therefore keys it by name and uid (`namespace_store_key`).
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from cedana_sched.model.errors import UsageError

CHECKPOINT_VARIABLE = "CEDANA_CHECKPOINT"
"""Environment variable with a workload's checkpoint id, as in Cedana."""

ALL_NAMESPACES = "*"
"""Shares every name; see `is_keyed_by_name`."""

_SHOWN, _LONGEST = 20, 300
"""Characters of invalid input that an error quotes."""
IDENTITY_PATTERN = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(IDENTITY_PATTERN)
NAMESPACE_UID_PATTERN = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAMESPACE = re.compile(rf"(?P<name>{IDENTITY_PATTERN})\.(?P<uid>{NAMESPACE_UID_PATTERN})")
_NAMESPACE_UID = re.compile(NAMESPACE_UID_PATTERN)
_ALPHABET_REMEDY = "use 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"


def validate_name(field: str, value: str) -> str:
    """Return `value` if valid as a path segment of every store and as a Kubernetes label value.

    Raises:
        UsageError: naming `field`, the value and the allowed alphabet.
    """
    if not _NAME.fullmatch(value):
        raise UsageError(field, value, "has characters that an identity cannot hold", remedy=_ALPHABET_REMEDY)
    return value


def validate_namespace(value: str) -> str:
    """Validate a namespace: a plain name, or the form of `namespace_store_key`."""
    return value if _NAMESPACE.fullmatch(value) else validate_name("namespace", value)


def namespace_store_key(name: str, uid: str) -> str:
    """Return a store's key for the namespace with this uid; Kubernetes namespace names contain no dots.

    Raises:
        UsageError: `uid` is not a namespace uid.
    """
    called = f"{name}.{uid}"
    if not _NAMESPACE.fullmatch(called):
        raise UsageError("uid", uid[:_LONGEST], f"is no uid of namespace {name[:_SHOWN]}", remedy="give a UUID")
    return called


def is_namespace_uid(word: str) -> bool:
    """Return whether the word has the form of the API server's namespace uids."""
    return _NAMESPACE_UID.fullmatch(word) is not None


def may_be_same_namespace(uid: str, other: str) -> bool:
    """Return whether two uids recorded for namespaces of one name can be the same namespace's.

    An empty uid matches any: it was not recorded (older versions), or the name is shared (`is_keyed_by_name`).
    """
    return not uid or not other or uid == other


def is_keyed_by_name(name: str, shared: Collection[str]) -> bool:
    """Return whether a store keys a namespace by its name alone.

    Args:
        name: the namespace's name in Kubernetes.
        shared: names that are keyed without uid, or `ALL_NAMESPACES`.
    """
    return not {name, ALL_NAMESPACES}.isdisjoint(shared)


def name_of_namespace(namespace: str) -> str:
    """Return the name part of a store's namespace key."""
    match = _NAMESPACE.fullmatch(namespace)
    return match["name"] if match else namespace


def uid_of_namespace(namespace: str) -> str:
    """Return the uid part of a store's namespace key; empty for a plain name."""
    match = _NAMESPACE.fullmatch(namespace)
    return match["uid"] if match else ""


LARGEST_INDEX = 2**31 - 1
"""As in Kubernetes, whose indexes have 32 bits."""
LARGEST_GENERATION = 9_999_999_999
"""The store writes generations with ten digits."""
_LARGEST_GENERATION = 2**63 - 1


def read_index(field: str, text: str) -> int:
    """Parse a replica index.

    Raises:
        UsageError: naming `field`; the text is no number from 0 to `LARGEST_INDEX`.
    """
    if (found := _parse_bounded_number(text, LARGEST_INDEX)) is None:
        remedy = f"number replicas from 0 to {LARGEST_INDEX}"
        raise UsageError(field, text[:_SHOWN], "is no number of a replica", remedy=remedy)
    return found


def _parse_bounded_number(text: str, largest: int) -> int | None:
    """Parse plain decimal digits up to `largest`; None for anything else."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(largest))):
        return None
    number = int(text)
    return number if number <= largest else None


class Identity(msgspec.Struct, frozen=True, order=True):
    """The key of a workload's snapshots, stable across incarnations."""

    namespace: str
    id: str
    index: int = 0
    container: str = "main"

    def __post_init__(self) -> None:
        validate_namespace(self.namespace)
        validate_name("id", self.id)
        validate_name("container", self.container)
        if not 0 <= self.index <= LARGEST_INDEX:
            remedy = f"number replicas from 0 to {LARGEST_INDEX}"
            raise UsageError("index", self.index, "is no number of a replica", remedy=remedy)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.id}/{self.index}/{self.container}"

    @classmethod
    def parse(cls, text: str) -> Identity:
        """Parse `namespace/id[/index[/container]]`.

        Raises:
            UsageError: the text has another form.
        """
        parts = text.split("/")
        index = _parse_bounded_number(parts[2], LARGEST_INDEX) if len(parts) > 2 else 0
        if not 2 <= len(parts) <= 4 or index is None:
            remedy = "write namespace/id, namespace/id/index or namespace/id/index/container"
            raise UsageError("identity", text[:_LONGEST], "cannot be read", remedy=remedy)
        return cls(parts[0], parts[1], index, parts[3] if len(parts) > 3 else "main")


class SnapshotRef(msgspec.Struct, frozen=True, order=True):
    """One committed generation of one identity. Generations start at 1 and are never reused."""

    identity: Identity
    generation: int

    def __str__(self) -> str:
        return f"{self.identity}@{self.generation}"

    @classmethod
    def parse(cls, text: str) -> SnapshotRef:
        """Parse `namespace/id[/index[/container]]@generation`.

        Raises:
            UsageError: the text has another form.
        """
        identity, at, generation = text.rpartition("@")
        number = _parse_bounded_number(generation, _LARGEST_GENERATION)
        if not at or not number:
            raise UsageError("snapshot", text[:_LONGEST], "cannot be read", remedy="write namespace/id@generation")
        return cls(Identity.parse(identity), number)
