"""A writer at work announces itself: which packs it may refer to, and by its heartbeat that it is alive.

The object `intents/<writer>` is rewritten every quarter of its time to live. Its age is judged by the store's own
clock (the object's date against the date of a fresh object), so machines need not agree on the time. The writer
judges itself by a clock that goes on while its machine is suspended, from *before* the last heartbeat it sent, which is
never later than the store's date, and by the dates of two heartbeats: those go on while its virtual machine is paused.
So a lease that its writer takes for valid is valid for every collection. A lease that has run out once stays so: the
writer's packs may have been collected since.
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
from cedana_sched.store.bounded import crowded, kept, name_of
from cedana_sched.store.decoding import UNREADABLE

TIME_TO_LIVE_SECONDS = 180.0
CLOCK_GRAIN_SECONDS = 2.0
"""Stores date their objects to the second."""
MOST_BYTES = 128 << 20
"""Of all intents of a namespace: of a thousand writers at once, each of which continues a snapshot of 200 GB."""

_log = structlog.get_logger(__name__)


class Intent(msgspec.Struct, frozen=True):
    """What a writer announces. Host and process are for people."""

    writer: str
    identity: Identity
    packs: tuple[layout.PackName, ...] = ()
    host: str = ""
    process: int = 0


_decoder = msgspec.msgpack.Decoder(Intent)


class Lease:
    """An announced intent, kept alive by a thread of its own until it is released."""

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
        """By the store's clock, of the last heartbeat."""
        self._has_lapsed = False
        self._announce()
        self._thread = threading.Thread(target=self._beat, name=f"store-intent-{writer[:8]}", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether its lease is valid, and always was."""
        return not self._has_lapsed and _seconds() - self._confirmed < self._time_to_live

    def protect(self, packs: tuple[str, ...]) -> None:
        """Announce the packs of earlier generations that may be referred to."""
        self._intent = msgspec.structs.replace(self._intent, packs=packs)
        self._announce()

    def require(self) -> None:
        """Announce it once more, and raise if the lease has run out since it began.

        Raises:
            StoreError: the store cannot be written now, or heartbeats did not get through for too long.
        """
        if self.alive:
            self._announce()
        if not self.alive:
            sentence = f"no heartbeat of this writer has reached the store for {self._time_to_live:.0f} s"
            raise StoreUnavailableError(sentence, remedy="take the snapshot again")

    def release(self) -> bool:
        """Stop the heartbeat and withdraw the intent; whether the store took that. Otherwise it runs out by itself."""
        self._stop.set()
        self._thread.join()
        try:
            self._backend.delete([self._key])
        except CedanaSchedError as error:
            _log.info("intent_left_behind", key=self._key, why=str(error))
            return False
        return True

    def _announce(self) -> None:
        with self._lock:
            begun = _seconds()
            self._backend.put(self._key, msgspec.msgpack.encode(self._intent))
            entry = self._backend.stat(self._key)
            if entry is None or self._came_late(begun, entry.modified):
                self._has_lapsed = True
                return
            self._confirmed, self._dated = begun, entry.modified

    def _came_late(self, begun: float, dated: float) -> bool:
        if self._dated is None:
            return False
        return begun - self._confirmed >= self._time_to_live or dated - self._dated > self._time_to_live

    def _beat(self) -> None:
        while not self._stop.wait(self._time_to_live / 4):
            try:
                self._announce()
            except CedanaSchedError as error:
                _log.warning("heartbeat_failed", key=self._key, why=str(error))


def _seconds() -> float:
    """Of a clock that is never set, and that a suspended machine does not stop."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Intents(msgspec.Struct, frozen=True):
    """The intents of the writers that are at work in a namespace at one moment."""

    live: tuple[Intent, ...]

    @property
    def writers(self) -> frozenset[str]:
        return frozenset(intent.writer for intent in self.live)

    @property
    def packs(self) -> frozenset[str]:
        """Packs that a writer at work may refer to."""
        return frozenset(pack for intent in self.live for pack in intent.packs)


def read_intents(
    backend: Backend,
    namespace: str,
    *,
    now: float,
    time_to_live_seconds: float = TIME_TO_LIVE_SECONDS,
    of: Collection[str] | None = None,
) -> Intents:
    """Who is at work in a namespace, or which of the writers `of`; `now` is the store's clock.

    Raises:
        CrowdedNamespaceError: they are more than fits memory.
    """
    dead = _died(now, time_to_live_seconds)

    def is_wanted(entry: Entry) -> bool:
        return entry.modified >= dead and (of is None or name_of(entry) in of)

    live, size = [], 0
    for entry in kept(backend, namespace, layout.intents_folder(namespace), "writers at work", is_wanted):
        try:
            data = backend.get_range(entry.key, 0, MOST_BYTES - size + 1) if entry.size else b""
            if (size := size + len(data)) > MOST_BYTES:
                raise crowded(namespace, f"intents of more than {MOST_BYTES:,} bytes")
            live.append(_decoder.decode(data))
        except MissingObjectError:
            continue
        except UNREADABLE as error:  # nobody's, and it goes when it is old
            _log.info("intent_unreadable", key=entry.key, why=str(error))
    return Intents(tuple(live))


def dead_intents(backend: Backend, namespace: str, *, now: float, time_to_live_seconds: float) -> Iterator[Entry]:
    """What writers left that have died, and never believe in themselves again; arguments as of `read_intents`."""
    dead = _died(now, time_to_live_seconds)
    return (entry for entry in backend.list(layout.intents_folder(namespace)) if entry.modified < dead)


def _died(now: float, time_to_live_seconds: float) -> float:
    """Whose last heartbeat is older is dead."""
    return now - time_to_live_seconds - CLOCK_GRAIN_SECONDS
