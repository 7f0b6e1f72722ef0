"""All errors that this project raises on purpose, as one tree.

    CedanaSchedError
    ├── UsageError                invalid input of a user: names field, value and remedy
    │   ├── NotFoundError         the named object does not exist
    │   └── RefusedError          the named object exists, in a state that forbids the operation
    ├── IncompatibleError         a snapshot cannot be restored on this machine
    │   └── NewerFormatError      it can, once this machine is upgraded
    ├── SnapshotError             CRIU could not dump or restore
    │   ├── DumpError
    │   └── RestoreError
    ├── StoreError                the store refused, lost or damaged data
    │   ├── StoreUnavailableError unreachable, overloaded, full: a retry may succeed
    │   ├── StoreDeniedError      wrong keys, missing bucket, read-only folder: needs intervention
    │   │   ├── SealedError       sealed data without the matching key
    │   │   └── UnsealedError     unsealed data where sealing is required
    │   ├── CommitConflictError   another writer committed this generation first
    │   └── IntegrityError        the data read differs from the data written
    └── IllegalTransitionError    an event that the transition table does not allow

An error has one sentence for the problem, a remedy, and bounded evidence (log lines, a response). Retryability is a
type, never a string: use `isinstance(e, RetryableError)`.
"""

from __future__ import annotations

from typing import Self

EVIDENCE_LINES = 20


class CedanaSchedError(Exception):
    """Base class: `message` is the problem, `remedy` the fix, `evidence` at most 20 lines of foreign output."""

    def __init__(self, message: str, *, remedy: str = "", evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.evidence = tuple(evidence)[-EVIDENCE_LINES:]

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class RetryableError(CedanaSchedError):
    """Mixin: a retry may succeed without any intervention."""


class UsageError(CedanaSchedError):
    """Invalid input of a user. `field` and `value` locate it."""

    def __init__(self, field: str, value: object, problem: str, *, remedy: str) -> None:
        super().__init__(f"{field}: {value!r} {problem}", remedy=remedy)
        self.field = field
        self.value = value

    @classmethod
    def from_wire_message(cls, field: str, message: str, *, remedy: str) -> Self:
        """Recreate the error on the client side of a wire that carries only the message."""
        error = cls(field, None, "", remedy=remedy)
        error.message = message
        return error


class NotFoundError(UsageError):
    """The object that the user named does not exist."""


class RefusedError(UsageError):
    """The object that the user named is in a state that forbids the operation; a later state may allow it."""


class IncompatibleError(CedanaSchedError):
    """The snapshot cannot be restored here: another architecture, missing CPU features, a newer format."""


class NewerFormatError(IncompatibleError, RetryableError):
    """Written by a newer version of cedana-sched or CRIU; retryable, because upgrades roll out node by node."""


class SnapshotError(CedanaSchedError):
    """CRIU could not dump or restore; the evidence is the tail of CRIU's log."""


class DumpError(SnapshotError):
    """The processes could not be dumped; they run on unchanged."""


class RestoreError(SnapshotError):
    """The processes could not be restored; none of them is left running."""


class FilesChangedError(RestoreError):
    """Files outside the snapshot have changed since, and the policy for these decides what follows."""


class StoreError(CedanaSchedError):
    """The store refused, lost or damaged data."""


class StoreUnavailableError(StoreError, RetryableError):
    """Unreachable, overloaded or full: a retry may succeed."""


class StoreDeniedError(StoreError):
    """Wrong keys, missing bucket, read-only folder: needs intervention."""


class SealedError(StoreDeniedError, RetryableError):
    """Sealed data cannot be opened: the key is missing or does not match.

    Retryable: a changed Secret reaches the nodes one after the other.
    """


class UnsealedError(StoreDeniedError):
    """Unsealed data is refused where sealing is required: its origin is not authenticated."""


class CommitConflictError(StoreError):
    """Another writer committed this generation first."""


class IntegrityError(StoreError):
    """The data read differs from the data written: a damaged or missing chunk or manifest."""


class IllegalTransitionError(CedanaSchedError):
    """An event that the transition table does not allow; the evidence is the record's history."""


def may_succeed_on_retry(error: BaseException) -> bool:
    """Return whether a retry may succeed before a deadline, including errors under manual repair.

    Keys and permissions are replaced node by node, and server by server; clocks are corrected.
    """
    if isinstance(error, UnsealedError):
        return False
    return isinstance(error, RetryableError | StoreDeniedError | CommitConflictError)
