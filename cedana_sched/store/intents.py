"""Intents: a live writer announces the packs that it may reference, and renews its lease by a heartbeat.

The object `intents/<writer>` is rewritten every quarter of its time to live. Its age is measured by the store's own
clock (its date against that of a fresh object), so machines need no synchronized clocks. The writer measures its own
lease by a clock that includes time suspended, from *before* the last heartbeat was sent, which is never later than the
store's date, and by the dates of two heartbeats, which advance while its virtual machine is paused. So a lease that is
valid for its writer is valid for every collection. An expired lease stays expired: the writer's packs may have been
collected since.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Iterator

import msgspec
import structlog

from cedana_sched.model.errors import CedanaSchedError, StoreUnavailableError
from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, Entry, MissingObjectError
from cedana_sched.store.bounded_listing import bounded_list, crowded_error, last_key_part
from cedana_sched.store.decoding import UNREADABLE

TIME_TO_LIVE_SECONDS = 180.0
CLOCK_GRAIN_SECONDS = 2.0
"""Stores date objects to the second."""
MOST_BYTES = 128 << 20
"""Bytes of all intents of a namespace: of a thousand writers at once, each continuing a snapshot of 200 GB."""

_log = structlog.get_logger(__name__)


class Intent(msgspec.Struct, frozen=True):
    """A writer's announcement. Host and process are informational."""

    writer: str
    identity: Identity
    packs: tuple[layout.PackName, ...] = ()
    host: str = ""
    process: int = 0


_decoder = msgspec.msgpack.Decoder(Intent)


class IntentLease:
    """An announced intent with a heartbeat thread, until it is released."""

    def __init__(
        self, backend: Backend, writer: str, identity: Identity, time_to_live_seconds: float = TIME_TO_LIVE_SECONDS
    ) -> None:
        self._backend = backend
        self._key = f"{layout.intents_folder(identity.namespace)}/{writer}"
        self._intent = Intent(writer, identity, (), socket.gethostname(), os.getpid())
        self._time_to_live = time_to_live_seconds
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._confirmed = float("-inf")
        self._dated: float | None = None
        """The store's time of the last heartbeat."""
        self._has_lapsed = False
        self._write_intent()
        self._thread = threading.Thread(
            target=self._renew_until_stopped, name=f"store-intent-{writer[:8]}", daemon=True
        )
        self._thread.start()

    @property
    def is_valid(self) -> bool:
        """Whether the lease is valid, and always was."""
        return not self._has_lapsed and _boot_clock_seconds() - self._confirmed < self._time_to_live

    def announce_packs(self, packs: tuple[str, ...]) -> None:
        """Announce the packs of earlier generations that may be referenced."""
        self._intent = msgspec.structs.replace(self._intent, packs=packs)
        self._write_intent()

    def require_valid(self) -> None:
        """Announce the intent once more, and raise if the lease has ever expired.

        Raises:
            StoreError: the store is not writable now, or heartbeats failed for too long.
        """
        if self.is_valid:
            self._write_intent()
        if not self.is_valid:
            sentence = f"no heartbeat of this writer has reached the store for {self._time_to_live:.0f} s"
            raise StoreUnavailableError(sentence, remedy="take the snapshot again")

    def release(self) -> bool:
        """Stop the heartbeat and delete the intent; return whether that succeeded. Otherwise the intent expires."""
        self._stop.set()
        self._thread.join()
        try:
            self._backend.delete([self._key])
        except CedanaSchedError as error:
            _log.info("intent_left_behind", key=self._key, error=str(error))
            return False
        return True

    def _write_intent(self) -> None:
        with self._lock:
            begun = _boot_clock_seconds()
            self._backend.put(self._key, msgspec.msgpack.encode(self._intent))
            entry = self._backend.stat(self._key)
            if entry is None or self._is_renewal_late(begun, entry.modified):
                self._has_lapsed = True
                return
            self._confirmed, self._dated = begun, entry.modified

    def _is_renewal_late(self, begun: float, dated: float) -> bool:
        if self._dated is None:
            return False
        return begun - self._confirmed >= self._time_to_live or dated - self._dated > self._time_to_live

    def _renew_until_stopped(self) -> None:
        while not self._stop.wait(self._time_to_live / 4):
            try:
                self._write_intent()
            except CedanaSchedError as error:
                _log.warning("heartbeat_failed", key=self._key, error=str(error))


def _boot_clock_seconds() -> float:
    """Return seconds of a monotonic clock that includes time suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Intents(msgspec.Struct, frozen=True):
    """The intents of a namespace's live writers at one moment."""

    live: tuple[Intent, ...]

    @property
    def live_writers(self) -> frozenset[str]:
        return frozenset(intent.writer for intent in self.live)

    @property
    def announced_packs(self) -> frozenset[str]:
        """Packs that a live writer may reference."""
        return frozenset(pack for intent in self.live for pack in intent.packs)


def read_intents(
    backend: Backend,
    namespace: str,
    *,
    now: float,
    time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
    of: Collection[str] | None = None,
) -> Intents:
    """Read the intents of a namespace's live writers, or of those in `of`; `now` is the store's time.

    Raises:
        CrowdedNamespaceError: more than fit in memory.
    """
    dead = _oldest_live_heartbeat(now, time_to_live_seconds)

    def is_wanted(entry: Entry) -> bool:
        return entry.modified >= dead and (of is None or last_key_part(entry) in of)

    live, size = [], 0
    for entry in bounded_list(backend, namespace, layout.intents_folder(namespace), "writers at work", is_wanted):
        try:
            data = backend.get_range(entry.key, 0, MOST_BYTES - size + 1) if entry.size else b""
            if (size := size + len(data)) > MOST_BYTES:
                raise crowded_error(namespace, f"intents of more than {MOST_BYTES:,} bytes")
            live.append(_decoder.decode(data))
        except MissingObjectError:
            continue
        except UNREADABLE as error:  # foreign; collected when it is old
            _log.info("intent_unreadable", key=entry.key, error=str(error))
    return Intents(tuple(live))


def dead_intents(backend: Backend, namespace: str, *, now: float, time_to_live_seconds: float) -> Iterator[Entry]:
    """Yield the intents of dead writers, whose leases stay expired; arguments as in `read_intents`."""
    dead = _oldest_live_heartbeat(now, time_to_live_seconds)
    return (entry for entry in backend.list(layout.intents_folder(namespace)) if entry.modified < dead)


def _oldest_live_heartbeat(now: float, time_to_live_seconds: float) -> float:
    """Return the time of the last heartbeat before which a writer counts as dead."""
    return now - time_to_live_seconds - CLOCK_GRAIN_SECONDS
