"""Expiring credentials, renewed before they expire: on demand, at most one renewal at a time.

While the old ones are valid, a failed renewal is harmless, and is retried after a pause. Validity is measured from the
moment of the request, so that this machine's wall clock does not matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cedana_sched.model.errors import StoreUnavailableError

RENEWED_AT: Final = 0.5
"""Share of the validity after which credentials are renewed: a dump that outlives its agent has at least the rest."""
EXPIRED_BEFORE_SECONDS: Final = 15.0
"""Seconds before expiry at which use stops: a signed request must still arrive in time."""
AGAIN_SECONDS: Final = 2.0
"""Seconds between two attempts, regardless of the number of callers."""
REFUSED_AGAIN_SECONDS: Final = 10.0
"""Younger credentials were refused for another reason than their age, and new ones would be, too."""
_LONGER: Final = "have the coordinator's clock set right, and the store give longer ones"


class CredentialsRefusedError(StoreUnavailableError):
    """This node is not entitled to the namespace now; a pod or an order for the node may change that."""


class SessionCredentials(msgspec.Struct, frozen=True, rename="camel"):
    """Credentials of one session; `seconds` is their validity from issue."""

    access_key: str
    secret_key: str
    session_token: str
    seconds: float

    def __repr__(self) -> str:
        return f"SessionCredentials({self.access_key}, {self.seconds:.0f} s)"


def _boot_clock_seconds() -> float:
    """Return seconds that include time suspended, in which credentials age, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RenewedCredentials:
    """The credentials of one namespace. Thread-safe.

    Args:
        fetch: returns new ones; blocks.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self, fetch: Callable[[], SessionCredentials], clock: Callable[[], float] = _boot_clock_seconds
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[SessionCredentials, float] | None = None
        self._failed: tuple[StoreUnavailableError, float] | None = None
        self._refused: SessionCredentials | None = None

    def are_valid(self) -> bool:
        """Whether there are credentials that have not expired."""
        return self._valid() is not None

    def mark_refused(self) -> bool:
        """Record that the store refuses the credentials; return whether the next call renews them, if it can.

        A restarted store may have lost its sessions, and the key from which sessions are derived may be replaced.
        """
        if self._held is None:
            return False
        credentials, until = self._held
        if self._clock() - (until - credentials.seconds) < REFUSED_AGAIN_SECONDS:
            return False
        self._refused = credentials
        return True

    def current(self) -> tuple[SessionCredentials, float]:
        """Return valid credentials, and for how many seconds they are valid.

        Raises:
            CredentialsRefusedError: this node is not entitled to any.
            StoreUnavailableError: the service did not respond, and there are no valid ones.
        """
        if (valid := self._valid()) is not None and not self._is_due(valid):
            return valid
        if valid is not None:  # do not wait for another thread's renewal
            if self._lock.acquire(blocking=False):
                try:
                    return self._renew() or valid
                finally:
                    self._lock.release()
            return valid
        with self._lock:
            valid = self._valid()
            if valid is not None and not self._is_due(valid):  # renewed while this thread waited
                return valid
            renewed = self._renew()
            if renewed is not None:
                return renewed
            assert self._failed is not None  # noqa: S101  # else it would have been renewed
            raise self._failed[0]

    def _valid(self) -> tuple[SessionCredentials, float] | None:
        if self._held is None:
            return None
        credentials, until = self._held
        left = until - self._clock()
        return (credentials, left) if left > EXPIRED_BEFORE_SECONDS else None

    def _is_due(self, valid: tuple[SessionCredentials, float]) -> bool:
        credentials, left = valid
        return credentials is self._refused or left <= credentials.seconds * (1 - RENEWED_AT)

    def _renew(self) -> tuple[SessionCredentials, float] | None:
        """Renew the credentials; None: an attempt failed now, or a moment ago."""
        if self._failed is not None and self._clock() - self._failed[1] < AGAIN_SECONDS:
            return None
        began = self._clock()
        try:
            credentials = self._fetch()
        except StoreUnavailableError as error:
            self._failed = error, self._clock()
            return None
        self._held = credentials, began + credentials.seconds
        valid = self._valid()
        short = StoreUnavailableError(f"credentials are valid for {credentials.seconds:.0f} s only", remedy=_LONGER)
        self._failed = None if valid is not None else (short, self._clock())
        return valid
