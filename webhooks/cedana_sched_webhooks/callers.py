"""Who is believed to be the API server: who knows the first segment of our paths, and has its certificate, if asked.

The segment is random, one for each installation. It stands in the Secret of our certificates and in the webhook
configurations, which whoever may read rules the cluster as good as alone. Whoever else reaches our port is told that
there is nothing.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

SETTLE_SECONDS: Final = 5.0
"""Until all replicas have heard of a new segment: before that no configuration names it."""
FORMER_SECONDS: Final = 60.0
"""For so long one that was replaced counts: all API servers have heard of the new configurations by then."""
SHORTEST_SEGMENT: Final = 22
"""Characters: 128 bits, where a person has written one."""
_SEGMENT_BYTES: Final = 32


def new_segment() -> str:
    """One that nobody guesses."""
    return secrets.token_hex(_SEGMENT_BYTES)


class Callers:
    """Knows the segment, and the one before it.

    Args:
        clock: seconds of a clock that never goes back.
        certificate_names: common names, of which a caller's certificate must have one; empty: any will do, or none.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, certificate_names: frozenset[str] = frozenset()
    ) -> None:
        self._clock = clock
        self._certificate_names = certificate_names
        self._segment = ""
        self._former: dict[str, float] = {}
        """Until when each one counts, by the clock."""
        self._settled_at = 0.0

    @property
    def is_told(self) -> bool:
        """Whether there is a segment; before that nobody is believed."""
        return bool(self._segment)

    @property
    def is_settled(self) -> bool:
        """Whether the other replicas have heard of it, too."""
        return self.is_told and self._clock() >= self._settled_at

    def learn(self, segment: str) -> None:
        """From now on this is the one."""
        if segment == self._segment:
            return
        if self._segment:
            self._former[self._segment] = self._clock() + FORMER_SECONDS
            self._settled_at = self._clock() + SETTLE_SECONDS
        self._former.pop(segment, None)
        self._segment = segment

    def is_known(self, segment: str) -> bool:
        """Whether a caller who says this is believed, in a time that shows nothing of what would be."""
        now, given = self._clock(), segment.encode(errors="replace")
        self._former = {former: until for former, until in self._former.items() if until > now}
        known = [one for one in (self._segment, *self._former) if one]
        return any([hmac.compare_digest(one.encode(), given) for one in known])  # noqa: C419  # all of them, always

    def has_name(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a certificate, as `ssl.SSLSocket.getpeercert` shows it, is that of an API server."""
        if not self._certificate_names:
            return True
        subject = (certificate or {}).get("subject", ())
        names = {value for group in subject for key, value in group if key == "commonName"}
        return bool(names & self._certificate_names)
