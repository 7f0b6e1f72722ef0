"""Who is believed to be whom a server is there for: who knows the first segment of a path, and shows a certificate.

The certificate is asked for where callers have one. Each path has a segment of its own, derived from a random secret of
the installation, which stands in a Secret. The segments stand in the configuration of the callers. They may tell
somebody the path that they have called: that opens no other. Whoever else reaches our port is told that there is
nothing (`strangers`).
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

SETTLE_SECONDS: Final = 5.0
"""Until all replicas have heard of a new secret: before that no configuration names what is derived from it."""
FORMER_SECONDS: Final = 60.0
"""For so long one that was replaced counts, where we write the callers' configuration: all have read it by then."""
SHORTEST_SECRET: Final = 22
"""Characters: 128 bits, where a person has written one."""
_SECRET_BYTES: Final = 32


def new_secret() -> str:
    """One that nobody guesses."""
    return secrets.token_hex(_SECRET_BYTES)


def segment_of(secret: str, path: str) -> str:
    """What stands before a path: it tells neither the secret nor what stands before another path."""
    return hmac.digest(secret.encode(), path.encode(), "sha256").hex()


class Callers:
    """Knows the secret, and the one before it.

    Args:
        clock: seconds of a clock that never goes back.
        certificate_names: common names, of which a caller's certificate must have one; empty: any will do, or none.
        former_seconds: how long a secret that was replaced counts.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        certificate_names: frozenset[str] = frozenset(),
        former_seconds: float = FORMER_SECONDS,
    ) -> None:
        self._clock = clock
        self._former_seconds = former_seconds
        self._certificate_names = certificate_names
        self._secret = ""
        self._former: dict[str, float] = {}
        """Until when each secret that was replaced counts, by the clock."""
        self._settled_at = 0.0

    @property
    def is_told(self) -> bool:
        """Whether there is a secret; before that nobody is believed."""
        return bool(self._secret)

    @property
    def is_settled(self) -> bool:
        """Whether the other replicas have heard of it, too."""
        return self.is_told and self._clock() >= self._settled_at

    def learn(self, secret: str) -> None:
        """From now on this is the one."""
        if secret == self._secret:
            return
        if self._secret:
            self._former[self._secret] = self._clock() + self._former_seconds
            self._settled_at = self._clock() + SETTLE_SECONDS
        self._former.pop(secret, None)
        self._secret = secret

    def is_known(self, segment: str, path: str) -> bool:
        """Whether who calls the path behind this segment is believed, in a time that shows nothing of what would be."""
        now, given = self._clock(), segment.encode(errors="replace")
        for gone in [one for one, until in self._former.items() if until <= now]:
            del self._former[gone]
        known = [segment_of(one, path) for one in (self._secret, *self._former) if one]
        return any([hmac.compare_digest(one.encode(), given) for one in known])  # noqa: C419  # all of them, always

    def has_name(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a certificate, as `ssl.SSLSocket.getpeercert` shows it, is that of a caller."""
        if not self._certificate_names:
            return True
        subject = (certificate or {}).get("subject", ())
        names = {value for group in subject for key, value in group if key == "commonName"}
        return bool(names & self._certificate_names)
