"""Interface of wrapping-key providers: a file (`key_file`), or a key management service of the same shape."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cedana_sched.model.errors import SealedError


class Wrapped(NamedTuple):
    """A data key, wrapped by the wrapping key of this id."""

    key_id: str
    data: bytes


class NotUnwrappedError(SealedError):
    """The wrapping key is available and does not unwrap this in this place: it was changed or forged."""


class KeyProvider(Protocol):
    """Wraps and unwraps data keys. Calls block and are thread-safe; errors are `StoreError`s and `UsageError`s."""

    @property
    def description(self) -> str:
        """Where the keys are, for error messages; no secret."""

    def newest_key_id(self) -> str:
        """Id of the key that wraps now; the others only unwrap."""

    def wrap(self, key: bytes, context: bytes) -> Wrapped:
        """Wrap a data key for the place that `context` names."""

    def unwrap(self, wrapped: Wrapped, context: bytes) -> bytes:
        """Unwrap a data key.

        Raises:
            SealedError: the wrapping key is not available.
            NotUnwrappedError: the wrapping key did not wrap this, or wrapped it for another place.
        """
