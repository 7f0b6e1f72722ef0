"""Credentials that expire, and are renewed before they do: by whoever needs them next, at most one at a time.

While the old ones are valid, a renewal that fails harms nobody, and is tried again later. Time is measured here from
the moment the credentials were wanted, so that this machine's time of day does not matter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from cedana_sched.model.errors import StoreUnavailableError

RENEWED_AT: Final = 0.5
"""Of their life: what outlives the one that renews them, as dumps outlive an agent, has at least that much left."""
EXPIRED_BEFORE_SECONDS: Final = 15.0
"""They are not used any more so long before they expire: a request that was signed must still arrive."""
AGAIN_SECONDS: Final = 2.0
"""Between two attempts, however many callers there are."""
REFUSED_AGAIN_SECONDS: Final = 10.0
"""Credentials that are younger were refused for another reason than their age, and new ones would be as well."""
_LONGER: Final = "have the coordinator's clock set right, and the store give longer ones"


class CredentialsRefusedError(StoreUnavailableError):
    """This node has no business in the namespace now; it may have again, when a pod or an order comes to it."""


class SessionCredentials(msgspec.Struct, frozen=True, rename="camel"):
    """Of one session; `seconds` is how long they are valid, from when they were given."""

    access_key: str
    secret_key: str
    session_token: str
    seconds: float

    def __repr__(self) -> str:
        return f"SessionCredentials({self.access_key}, {self.seconds:.0f} s)"


def _elapsed() -> float:
    """Credentials grow old also while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class RenewedCredentials:
    """The credentials of one namespace. Any thread may call.

    Args:
        fetch: gets new ones; blocks.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, fetch: Callable[[], SessionCredentials], clock: Callable[[], float] = _elapsed) -> None:
        self._fetch = fetch
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[SessionCredentials, float] | None = None
        self._failed: tuple[StoreUnavailableError, float] | None = None
        self._refused: SessionCredentials | None = None

    def are_valid(self) -> bool:
        """Whether some are here that have not expired."""
        return self._valid() is not None

    def refused(self) -> bool:
        """The store does not take them; True: whoever needs some next gets new ones, if there are any.

        A store that is started anew may have forgotten its sessions, and the key may be replaced that they are made of.
        """
        if self._held is None:
            return False
        credentials, until = self._held
        if self._clock() - (until - credentials.seconds) < REFUSED_AGAIN_SECONDS:
            return False
        self._refused = credentials
        return True

    def current(self) -> tuple[SessionCredentials, float]:
        """Some that are valid, and for how many seconds they are.

        Raises:
            CredentialsRefusedError: this node gets none.
            StoreUnavailableError: nobody answered, and there are none that are valid.
        """
        if (valid := self._valid()) is not None and not self._is_due(valid):
            return valid
        if valid is not None:  # nobody waits for whoever renews them
            if self._lock.acquire(blocking=False):
                try:
                    return self._renew() or valid
                finally:
                    self._lock.release()
            return valid
        with self._lock:
            valid = self._valid()
            if valid is not None and not self._is_due(valid):  # fetched while we waited
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
        """None: it failed now, or a moment ago."""
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
