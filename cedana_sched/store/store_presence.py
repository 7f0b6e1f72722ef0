"""The mark of a folder with a store: an unmounted volume leaves an empty folder in its place.

The file `cedana-sched-store` is created with the first write; its content is the store's own name. A process that has
seen the mark, itself or by a persistent note, treats a folder without it as an unavailable store, which may reappear,
and never as an empty one: it reports nothing as missing, and writes nothing there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from hashlib import blake2b
from pathlib import Path

import structlog

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.runtime_handler.atomic_write import write_atomically
from cedana_sched.store import layout, link_safe_folders

NAME = "cedana-sched-store"
NOTES = "stores"
"""Folder of the notes, below a state directory."""
_MOST_BYTES = 1024

log = structlog.get_logger(__name__)


def has_store(folder: Path) -> bool:
    """Return whether anything was ever saved in a folder, or at least tried there."""
    return any(os.path.lexists(folder / name) for name in (NAME, layout.ROOT))


class StorePresence:
    """The mark of one folder. Thread-safe.

    Args:
        root: the folder.
        notes: a local folder for notes of the stores seen; None keeps none.
    """

    def __init__(self, root: Path, notes: Path | None) -> None:
        self._root = root
        name = blake2b(os.fsencode(root.absolute()), digest_size=16).hexdigest()
        self._note = notes / name if notes is not None else None
        self._seen: str | None = None

    @property
    def was_seen(self) -> bool:
        """Whether this process or this machine's note has seen a store here."""
        if self._seen is None and self._note is not None:
            with contextlib.suppress(OSError):
                self._seen = self._note.read_text().partition("\n")[0]
        return self._seen is not None

    def require_present(self, *, writing: bool = False) -> None:
        """Raise if a store was seen here and is missing now; create the mark if `writing`.

        Required before an object counts as missing, and before the first write into a folder.

        Raises:
            StoreUnavailableError: the store is unavailable.
            OSError: the mark cannot be created.
        """
        was_seen = self.was_seen  # read first: another thread may be creating it
        try:
            name = self._read_mark()
        except FileNotFoundError:
            self._check_unmarked_folder(was_seen=was_seen, writing=writing)
        except (PermissionError, NotADirectoryError):
            return  # the operation on the folder reports it better
        except OSError as error:
            raise self._not_mounted_error(error.strerror or str(error)) from error
        else:
            self._remember_store_name(name)

    def require_store_exists(self) -> None:
        """Raise unless there is a store, known to have been written, perhaps from another machine.

        Raises:
            StoreUnavailableError: there is no store.
        """
        self.require_present()
        if not self.was_seen and not (self._root / layout.ROOT).is_dir():
            raise self._not_mounted_error("the folder is there, and no store is in it")

    def _check_unmarked_folder(self, *, was_seen: bool, writing: bool) -> None:
        is_older = (self._root / layout.ROOT).is_dir()  # written by a version without marks
        if was_seen and not is_older:
            raise self._not_mounted_error("the folder is there, and the store that was in it is not")
        if writing:
            self._create_mark()
        elif is_older:
            with contextlib.suppress(OSError):  # read-only clients leave it to others
                self._create_mark()

    def _create_mark(self) -> None:
        name = secrets.token_hex(16)
        partial = self._root / f"{NAME}.{name}"
        try:
            with partial.open("x", encoding="ascii") as file:
                file.write(f"{name}\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another writer was first: its mark counts
                os.link(partial, self._root / NAME)
        finally:
            partial.unlink(missing_ok=True)
        self._remember_store_name(self._read_mark())

    def _read_mark(self) -> str:
        return link_safe_folders.read_file(self._root, NAME, _MOST_BYTES).decode("ascii", "replace").strip()

    def _remember_store_name(self, name: str) -> None:
        if self._seen == name:
            return
        if self._seen is not None:
            log.warning("another store is in the folder now", folder=str(self._root))
        self._seen = name
        if self._note is not None:
            try:
                self._note.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(self._note, f"{name}\n{self._root}\n".encode(), mode=0o644)
            except OSError as error:  # this process has it in memory all the same
                log.warning("store not noted", folder=str(self._root), error=str(error))

    def _not_mounted_error(self, why: str) -> StoreUnavailableError:
        anew = f"; to begin an empty store there, remove {self._note}" if self._note is not None else ""
        return StoreUnavailableError(
            f"the store at {self._root} is not mounted: {why}", remedy=f"mount it, or bring its server up{anew}"
        )
