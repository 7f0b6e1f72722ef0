"""One inotify instance for all folders that a process watches.

`fs.inotify.max_user_instances` (128 by default) and `max_user_watches` count per user of the node, across all
containers: a pod that runs as the same user, even root in any pod, may exhaust them. So a component opens one instance
at start, and keeps it. If the instance or a watch is not available, waiters poll every second until it is. The agent's
waits for files, and the webhooks' for certificates, use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from weakref import WeakKeyDictionary

import structlog
from asyncinotify import Event, Inotify, Mask, Watch

from cedana_sched.runtime_handler.shortage_retries import SHORTAGES

log = structlog.get_logger(__name__)

LOOK_SECONDS = 1.0
"""Poll interval without a watch; and delay of the check after dropped events."""
EVENTS_AT_ONCE = 1024
PAUSE_SECONDS = 0.05
"""Pause after `EVENTS_AT_ONCE` events: an endless stream of events must not block the process."""
_GONE = Mask.IGNORED | Mask.UNMOUNT
_EVENTS_READ = 256  # of the longest names
_LOGGED_EVERY_SECONDS = 600.0


class _Watched:
    """A watched folder and its waiters: the kernel has one watch per folder of an instance."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.waiters: dict[FolderChanges, Mask] = {}


class FolderChanges:
    """Changes of some folders for one waiter. Created by `FolderWatches.open_waiter`."""

    def __init__(self, watches: FolderWatches) -> None:
        self._watches = watches
        self._wanted: dict[Path, Mask] = {}
        self._watched: dict[Path, int] = {}
        self.changed = asyncio.Event()

    def add(self, folder: Path, mask: Mask) -> None:
        """Watch a folder: `wait` returns once one of these events has, or may have, happened.

        Raises:
            OSError: it cannot be watched, for a reason other than exhausted limits, such as that it does not exist.
        """
        self._add_kernel_watch(folder, mask)
        self._wanted[folder] = mask

    def remove(self, folder: Path) -> None:
        """Stop watching a folder."""
        self._wanted.pop(folder, None)
        number = self._watched.pop(folder, None)
        if number is not None and number not in self._watched.values():  # two paths may name one folder
            self._watches.remove(number, self)

    async def wait(self) -> None:
        """Return once something has, or may have, happened since the last call."""
        if not self.changed.is_set() and not self._attach_missing():
            is_blind = self._watched.keys() != self._wanted.keys()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if is_blind else None):
                    await self.changed.wait()
        self.changed.clear()

    def close(self) -> None:
        """Stop watching all folders."""
        for folder in list(self._wanted):
            self.remove(folder)

    def drop_watch(self, number: int) -> None:
        """Drop a watch that the kernel ended because its folder is gone."""
        self._watched = {folder: one for folder, one in self._watched.items() if one != number}

    def _add_kernel_watch(self, folder: Path, mask: Mask) -> bool:
        if (number := self._watches.add(folder, mask, self)) is not None:
            self._watched[folder] = number
        return number is not None

    def _attach_missing(self) -> bool:
        """Return whether another folder is watched now: earlier events may have been missed."""
        more = False
        for folder, mask in self._wanted.items():
            if folder not in self._watched:
                with contextlib.suppress(OSError):  # it may exist again later
                    more |= self._add_kernel_watch(folder, mask)
        return more


class FolderWatches:
    """Watches of one event loop; `watches` returns those of the running one."""

    def __init__(self) -> None:
        self._inotify: Inotify | None = None
        self._watched: dict[int, _Watched] = {}
        self._waiters: set[FolderChanges] = set()
        self._keepers = 0
        self._dropped: asyncio.TimerHandle | None = None
        self._logged_at: float | None = None

    @contextlib.contextmanager
    def keep_open(self) -> Iterator[None]:
        """Keep the instance open in this block, from its beginning: later none may be available."""
        self._keepers += 1
        try:
            self._open_inotify()
            yield
        finally:
            self._keepers -= 1
            self._close_unused()

    @contextlib.contextmanager
    def open_waiter(self) -> Iterator[FolderChanges]:
        """Yield a waiter's `FolderChanges`."""
        waiter = FolderChanges(self)
        self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            waiter.close()
            self._waiters.discard(waiter)
            self._close_unused()

    def add(self, folder: Path, mask: Mask, waiter: FolderChanges) -> int | None:
        """Add a watch; return its number, or None if none is available.

        Raises:
            OSError: see `FolderChanges.add`.
        """
        if (inotify := self._open_inotify()) is None:
            return None
        try:
            watch = inotify.add_watch(folder, mask | Mask.MASK_ADD)
        except OSError as error:
            self._log_shortage(error)
            return None
        watched = self._watched.setdefault(watch.wd, _Watched(watch))
        watched.waiters[waiter] = watched.waiters.get(waiter, Mask(0)) | mask
        return watch.wd

    def remove(self, number: int, waiter: FolderChanges) -> None:
        """Remove a waiter from a watch."""
        watched = self._watched[number]
        watched.waiters.pop(waiter, None)
        if not watched.waiters and self._inotify is not None:
            del self._watched[number]
            with contextlib.suppress(OSError):  # its folder is gone, and the watch with it
                self._inotify.rm_watch(watched.watch)

    def _open_inotify(self) -> Inotify | None:
        if self._inotify is None:
            try:
                self._inotify = _open_instance(self._read)
            except OSError as error:
                self._log_shortage(error)
                return None
        return self._inotify

    def _close_unused(self) -> None:
        if self._inotify is not None and not self._waiters and not self._keepers:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    def _log_shortage(self, error: OSError) -> None:
        """Log exhausted limits, rate-limited; raise errors of other kinds."""
        if error.errno not in SHORTAGES:
            raise error
        now = asyncio.get_running_loop().time()
        if self._logged_at is None or now - self._logged_at > _LOGGED_EVERY_SECONDS:
            self._logged_at = now
            log.warning("the node has no inotify left for this user: looking instead", error=str(error))

    def _read(self) -> None:
        if (inotify := self._inotify) is None:
            return
        for _ in range(EVENTS_AT_ONCE):
            try:
                event = inotify.sync_get()
            except BlockingIOError:
                return
            if event is not None:
                self._dispatch(event)
        loop = asyncio.get_running_loop()
        loop.remove_reader(inotify.fd)
        loop.call_later(PAUSE_SECONDS, self._resume_reading, inotify)

    def _resume_reading(self, inotify: Inotify) -> None:
        if inotify is not self._inotify:
            return
        loop = asyncio.get_running_loop()
        try:
            loop.add_reader(inotify.fd, self._read)
        except OSError as error:  # epoll's watches are limited like inotify's
            self._log_shortage(error)
            loop.call_later(LOOK_SECONDS, self._resume_reading, inotify)
        self._read()

    def _dispatch(self, event: Event) -> None:
        if Mask.Q_OVERFLOW in event.mask:
            if self._dropped is None:
                self._dropped = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._wake_all_waiters)
            return
        number = event.watch.wd if event.watch is not None else None
        if number is None or (watched := self._watched.get(number)) is None:
            return  # of a removed watch
        for waiter, mask in watched.waiters.items():
            if event.mask & (mask | _GONE):
                waiter.changed.set()
        if Mask.IGNORED in event.mask:
            del self._watched[number]
            for waiter in watched.waiters:
                waiter.drop_watch(number)

    def _wake_all_waiters(self) -> None:
        """Wake all after dropped events, whose waiters are unknown; delayed, because events may be endless."""
        self._dropped = None
        for waiter in self._waiters:
            waiter.changed.set()


def _open_instance(read: Callable[[], None]) -> Inotify:
    """Open an instance that calls `read` when events are available.

    Raises:
        OSError: none is available.
    """
    inotify = Inotify(cache_size=_EVENTS_READ)
    try:
        os.set_blocking(inotify.fd, False)  # asyncinotify 4.3 intends this, but sets another flag
        asyncio.get_running_loop().add_reader(inotify.fd, read)
    except OSError:
        inotify.close()
        raise
    return inotify


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, FolderWatches] = WeakKeyDictionary()


def shared_folder_watches() -> FolderWatches:
    """Return the watches of this process, which has one event loop."""
    return _OF_LOOPS.setdefault(asyncio.get_running_loop(), FolderWatches())
