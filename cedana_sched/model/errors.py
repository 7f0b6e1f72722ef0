"""Every error that this project raises on purpose, as one tree.

    CedanaSchedError
    ├── UsageError                what a person wrote cannot be done: names field, value and remedy
    │   ├── NotFoundError         what a person named does not exist
    │   └── RefusedError          it exists, and is in a state in which that cannot be done
    ├── IncompatibleError         a snapshot cannot continue on this machine
    │   └── NewerFormatError      it can, once this machine is upgraded
    ├── SnapshotError             CRIU could not dump or restore
    │   ├── DumpError
    │   └── RestoreError
    ├── StoreError                the store refused, lost or damaged something
    │   ├── StoreUnavailableError unreachable, overloaded, full: the same call may work later
    │   ├── StoreDeniedError      wrong keys, missing bucket, read-only folder: a person must act
    │   │   ├── SealedError       it is sealed, and its key is not here
    │   │   └── UnsealedError     it is not sealed where everything must be
    │   ├── CommitConflictError   somebody else committed this generation first
    │   └── IntegrityError        what was read is not what was written
    └── IllegalTransitionError    an event that the state machine's table does not know

An error is one sentence that says what is wrong, a remedy that says what to do, and bounded evidence
(log lines, a response). Retryability is a type, never a string: ask `isinstance(e, RetryableError)`.
"""

from __future__ import annotations

from typing import Self

EVIDENCE_LINES = 20


class CedanaSchedError(Exception):
    """Base of all: `message` is the sentence, `remedy` what to do, `evidence` foreign output of at most 20 lines."""

    def __init__(self, message: str, *, remedy: str = "", evidence: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.evidence = tuple(evidence)[-EVIDENCE_LINES:]

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class RetryableError(CedanaSchedError):
    """Mixin: the same call may succeed later without anybody changing anything."""


class UsageError(CedanaSchedError):
    """What a person wrote cannot be done. `field` and `value` say which part of it."""

    def __init__(self, field: str, value: object, problem: str, *, remedy: str) -> None:
        super().__init__(f"{field}: {value!r} {problem}", remedy=remedy)
        self.field = field
        self.value = value

    @classmethod
    def restored(cls, field: str, message: str, *, remedy: str) -> Self:
        """The same error on the other side of a wire, where only its sentence is known."""
        error = cls(field, None, "", remedy=remedy)
        error.message = message
        return error


class NotFoundError(UsageError):
    """What a person named does not exist."""


class RefusedError(UsageError):
    """What a person named exists, but is in a state in which that cannot be done; later it may be."""


class IncompatibleError(CedanaSchedError):
    """A snapshot cannot continue here: another architecture, missing CPU features, a newer format."""


class NewerFormatError(IncompatibleError, RetryableError):
    """A newer version of cedana-sched or of CRIU wrote it; retryable: an upgrade reaches one node after the other."""


class SnapshotError(CedanaSchedError):
    """CRIU could not dump or restore; the evidence holds the last lines of its own log."""


class DumpError(SnapshotError):
    """The processes could not be dumped; they run on as before."""


class RestoreError(SnapshotError):
    """The processes could not be restored; nothing of them is left running."""


class StoreError(CedanaSchedError):
    """The store refused, lost or damaged something."""


class StoreUnavailableError(StoreError, RetryableError):
    """Unreachable, overloaded or full: the same call may work later."""


class StoreDeniedError(StoreError):
    """Wrong keys, missing bucket, read-only folder: a person must act first."""


class SealedError(StoreDeniedError, RetryableError):
    """What is sealed cannot be opened: no key was given, or not the one that it was sealed with.

    It may work later: a Secret that was changed reaches one node after the other.
    """


class UnsealedError(StoreDeniedError):
    """What is not sealed is refused where everything must be: anybody may have written it."""


class CommitConflictError(StoreError):
    """Somebody else committed this generation first."""


class IntegrityError(StoreError):
    """What was read is not what was written: a damaged or missing chunk or manifest."""


class IllegalTransitionError(CedanaSchedError):
    """An event that the transition table does not allow; the evidence is the history of that record."""


def may_pass(error: BaseException) -> bool:
    """Whether the same may succeed before a deadline, also where a person must act first: he may be at it.

    Keys and rights are replaced on one node, and in one server, after the other; clocks are set right.
    """
    if isinstance(error, UnsealedError):
        return False
    return isinstance(error, RetryableError | StoreDeniedError | CommitConflictError)
