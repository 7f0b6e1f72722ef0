"""Who a snapshot belongs to: `namespace / id / index / container`, and nothing crosses a namespace.

A namespace of a cluster is more than its name: it may be deleted and made again, and another cluster has one of the
same name. So a store calls it by its name and its uid (`namespace_of_uid`).
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from cedana_sched.model.errors import UsageError

CHECKPOINT_VARIABLE = "CEDANA_CHECKPOINT"
"""Environment variable whose value is a workload's checkpoint id, as in Cedana."""

ALL_NAMESPACES = "*"
"""Shares every name: see `is_shared`."""

_SHOWN, _LONGEST = 20, 300
"""Characters of what cannot be read that an error shows."""
IDENTITY_PATTERN = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NAME = re.compile(IDENTITY_PATTERN)
NAMESPACE_UID_PATTERN = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAMESPACE = re.compile(rf"(?P<name>{IDENTITY_PATTERN})\.(?P<uid>{NAMESPACE_UID_PATTERN})")
_NAMESPACE_UID = re.compile(NAMESPACE_UID_PATTERN)
_ALPHABET_REMEDY = "use 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit"


def validate_name(field: str, value: str) -> str:
    """Return `value` if it can be a path segment of every store and a label value of Kubernetes.

    Raises:
        UsageError: naming `field`, the value and the allowed alphabet.
    """
    if not _NAME.fullmatch(value):
        raise UsageError(field, value, "has characters that an identity cannot hold", remedy=_ALPHABET_REMEDY)
    return value


def validate_namespace(value: str) -> str:
    """The same of a namespace, by its name alone, or as `namespace_of_uid` calls it."""
    return value if _NAMESPACE.fullmatch(value) else validate_name("namespace", value)


def namespace_of_uid(name: str, uid: str) -> str:
    """What a store calls the namespace of a cluster that has this uid; names of namespaces have no dots there.

    Raises:
        UsageError: it is no uid of a namespace.
    """
    called = f"{name}.{uid}"
    if not _NAMESPACE.fullmatch(called):
        raise UsageError("uid", uid[:_LONGEST], f"is no uid of namespace {name[:_SHOWN]}", remedy="give a UUID")
    return called


def is_namespace_uid(word: str) -> bool:
    """Whether the API server makes such uids of namespaces."""
    return _NAMESPACE_UID.fullmatch(word) is not None


def may_be_one_namespace(uid: str, other: str) -> bool:
    """Whether two uids that were noted of namespaces of one name can be the same namespace's.

    Empty: nobody noted it, as older versions did not, or the name is shared (`is_shared`). That can be any.
    """
    return not uid or not other or uid == other


def is_shared(name: str, shared: Collection[str]) -> bool:
    """Whether a store keeps a namespace by its name alone.

    Args:
        name: of the namespace, in Kubernetes.
        shared: names that are no more than names, or `ALL_NAMESPACES`.
    """
    return not {name, ALL_NAMESPACES}.isdisjoint(shared)


def name_of_namespace(namespace: str) -> str:
    """The name alone of what `namespace_of_uid` has called a namespace; another one is its name."""
    match = _NAMESPACE.fullmatch(namespace)
    return match["name"] if match else namespace


def uid_of_namespace(namespace: str) -> str:
    """The uid in what `namespace_of_uid` has called a namespace; another one has none, and the answer is empty."""
    match = _NAMESPACE.fullmatch(namespace)
    return match["uid"] if match else ""


LARGEST_INDEX = 2**31 - 1
"""As in Kubernetes, where such numbers have 32 bits."""
LARGEST_GENERATION = 9_999_999_999
"""The store writes generations with ten digits."""
_LARGEST_GENERATION = 2**63 - 1


def read_index(field: str, text: str) -> int:
    """The number of a replica, as somebody wrote it.

    Raises:
        UsageError: naming `field`; it is no number from 0 to `LARGEST_INDEX`.
    """
    if (found := _number(text, LARGEST_INDEX)) is None:
        remedy = f"number replicas from 0 to {LARGEST_INDEX}"
        raise UsageError(field, text[:_SHOWN], "is no number of a replica", remedy=remedy)
    return found


def _number(text: str, largest: int) -> int | None:
    """None for anything but plain digits, of which there are not too many."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(largest))):
        return None
    number = int(text)
    return number if number <= largest else None


class Identity(msgspec.Struct, frozen=True, order=True):
    """The name under which a workload's snapshots are found again, by whichever process continues it."""

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
        """Read `namespace/id[/index[/container]]`.

        Raises:
            UsageError: when the text has another form.
        """
        parts = text.split("/")
        index = _number(parts[2], LARGEST_INDEX) if len(parts) > 2 else 0
        if not 2 <= len(parts) <= 4 or index is None:
            remedy = "write namespace/id, namespace/id/index or namespace/id/index/container"
            raise UsageError("identity", text[:_LONGEST], "cannot be read", remedy=remedy)
        return cls(parts[0], parts[1], index, parts[3] if len(parts) > 3 else "main")


class SnapshotRef(msgspec.Struct, frozen=True, order=True):
    """One committed generation of one identity. Generations count from 1 and never repeat."""

    identity: Identity
    generation: int

    def __str__(self) -> str:
        return f"{self.identity}@{self.generation}"

    @classmethod
    def parse(cls, text: str) -> SnapshotRef:
        """Read `namespace/id[/index[/container]]@generation`.

        Raises:
            UsageError: when the text has another form.
        """
        identity, at, generation = text.rpartition("@")
        number = _number(generation, _LARGEST_GENERATION)
        if not at or not number:
            raise UsageError("snapshot", text[:_LONGEST], "cannot be read", remedy="write namespace/id@generation")
        return cls(Identity.parse(identity), number)
