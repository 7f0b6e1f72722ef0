"""What holds the keys that wrap data keys: a file here; a key management service has the same shape."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cedana_sched.model.errors import SealedError


class Wrapped(NamedTuple):
    """A data key that only who has the wrapping key of this id can use."""

    key_id: str
    data: bytes


class NotUnwrappedError(SealedError):
    """The wrapping key is here, and it has not wrapped this for that place: somebody changed or forged it."""


class KeyProvider(Protocol):
    """Wraps and unwraps. Calls block, and may be made from any thread.

    They raise only `StoreError`s and `UsageError`s.
    """

    @property
    def description(self) -> str:
        """Where the keys are, for errors; holds no secret."""

    def newest(self) -> str:
        """The id of the key that wraps now; others only unwrap."""

    def wrap(self, key: bytes, context: bytes) -> Wrapped:
        """Wrap a data key for one place, which `context` says."""

    def unwrap(self, wrapped: Wrapped, context: bytes) -> bytes:
        """The data key.

        Raises:
            SealedError: the wrapping key is not here.
            NotUnwrappedError: it is, and this was not wrapped by it, or for another place.
        """
