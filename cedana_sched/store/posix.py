"""Objects as files of one folder: a local disk, NFS, CephFS, Lustre or a mounted volume.

A file appears under its name complete and on stable storage, or not at all: it is written under a temporary name,
flushed, then linked (exclusive) or renamed (replacing), and the folder is flushed after that. Links that others create
there are never followed: see `link_safe_folders`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from cedana_sched.model.errors import StoreDeniedError, StoreError, StoreUnavailableError
from cedana_sched.store import link_safe_folders
from cedana_sched.store.backend import Backend, Buffer, Entry, MissingObjectError, oversized_error
from cedana_sched.store.store_presence import StorePresence

_PARTIAL = ".partial-"
_UNIQUE = 12
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
_FOREIGN = {
    errno.ELOOP: "a link is in its place or on the way",
    errno.EXDEV: "a link is in its place or on the way",
    errno.EINVAL: "no regular file is in its place",
}
"""Kinds of files that our components never create."""


def translate_error(error: OSError, action: str, root: Path) -> StoreError:
    """Translate the kernel's error into a store error."""
    sentence = f"cannot {action} in {root}: {_FOREIGN.get(error.errno or 0) or error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        return MissingObjectError(sentence)
    if error.errno in _FOREIGN:
        return StoreDeniedError(sentence, remedy="remove it, and look who can write there")
    if error.errno in _FULL:
        return StoreUnavailableError(sentence, remedy="free space there, or remove old snapshots")
    if error.errno in _DENIED:
        return StoreDeniedError(sentence, remedy="make the folder writable for this user")
    return StoreUnavailableError(sentence, remedy="check the disk or the file server")


class PartialFile:
    """A file being written under a temporary name, in its final folder.

    Holds that folder open: the file is finished there, even if the folder is renamed. Methods raise OSErrors.
    """

    def __init__(self, folder: int, name: str) -> None:
        self._target = name
        self._name = f"{_PARTIAL}{secrets.token_hex(_UNIQUE // 2)}-{name}"
        self._has_name = False
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(self._name, flags, 0o600, dir_fd=folder)
        self._folder = os.dup(folder)

    def write(self, data: Buffer) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def sync_to_disk(self) -> None:
        os.fsync(self._descriptor)

    def modification_time(self) -> float:
        return os.fstat(self._descriptor).st_mtime

    def replace(self) -> None:
        """Rename the file, replacing any existing one."""
        os.rename(self._name, self._target, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._has_name = True
        os.fsync(self._folder)

    def link_if_absent(self) -> bool:
        """Link the file under its name unless the name exists; return whether it did not."""
        try:
            os.link(self._name, self._target, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        except FileExistsError:
            return False
        os.fsync(self._folder)
        return True

    def close(self) -> None:
        """Delete the temporary name; idempotent, never raises."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        if not self._has_name:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        for one in (descriptor, self._folder):
            with contextlib.suppress(OSError):
                os.close(one)


class PosixSink:
    """A large file being written."""

    def __init__(self, partial: PartialFile, root: Path) -> None:
        self._partial = partial
        self._root = root

    def write(self, data: Buffer) -> None:
        try:
            self._partial.write(data)
        except OSError as error:
            raise translate_error(error, "write a pack", self._root) from error

    def finish(self) -> None:
        try:
            self._partial.sync_to_disk()
            self._partial.replace()
        except OSError as error:
            raise translate_error(error, "finish a pack", self._root) from error
        self._partial.close()

    def abort(self) -> None:
        self._partial.close()


class PosixBackend(Backend):
    """See `Backend`. The root is created if only its last part is missing, and no store was ever seen there.

    While the store is unavailable, every call raises that would find an object missing, or write; see `store_presence`.
    """

    def __init__(self, root: Path, notes: Path | None = None) -> None:
        self.root = root
        self._folders: set[str] = set()
        self._mark = StorePresence(root, notes)
        if self._mark.was_seen:
            return
        try:
            root.mkdir(exist_ok=True, mode=0o700)
            self._mark.require_present()
        except FileNotFoundError as error:
            remedy = f"create {root.parent}, or mount the file system that holds it"
            raise StoreDeniedError(f"{root.parent} does not exist", remedy=remedy) from error
        except OSError as error:
            raise translate_error(error, "create the store", root.parent) from error

    def require_store_exists(self) -> None:
        """See `StorePresence.require_store_exists`."""
        self._mark.require_store_exists()

    @property
    def description(self) -> str:
        return f"the folder {self.root}"

    def put(self, key: str, data: Buffer) -> None:
        with self._write_partial_file(key, data) as partial:
            try:
                partial.replace()
            except OSError as error:
                raise translate_error(error, "write", self.root) from error

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        with self._write_partial_file(key, data) as partial:
            try:
                return partial.link_if_absent()
            except OSError as error:
                raise translate_error(error, "commit", self.root) from error

    def open_sink(self, key: str) -> PosixSink:
        return PosixSink(self._create_partial_file(key), self.root)

    def get(self, key: str, *, at_most: int) -> bytes:
        try:
            with os.fdopen(link_safe_folders.open_file(self.root, key), "rb") as file:
                if (size := os.fstat(file.fileno()).st_size) > at_most:
                    raise oversized_error(key, size, at_most)
                return file.read(size)
        except OSError as error:
            self._require_available_store(error)
            raise translate_error(error, f"read {key}", self.root) from error

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        try:
            descriptor = link_safe_folders.open_file(self.root, key)
            try:
                return os.pread(descriptor, length, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._require_available_store(error)
            raise translate_error(error, f"read {key}", self.root) from error

    def list(self, prefix: str) -> Iterator[Entry]:
        for folder, path, name in self._walk_files(prefix):
            if not name.startswith(_PARTIAL):
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    yield Entry(f"{path}/{name}", status.st_size, status.st_mtime)

    def folder_names(self, prefix: str) -> tuple[str, ...]:
        try:
            with link_safe_folders.open_folder(self.root, prefix) as folder:
                return tuple(sorted(link_safe_folders.folder_names_in(folder)))
        except FileNotFoundError:
            self._mark.require_present()
            return ()
        except OSError as error:
            raise translate_error(error, "list", self.root) from error

    def stat(self, key: str) -> Entry | None:
        above, _, name = key.rpartition("/")
        try:
            with link_safe_folders.open_folder(self.root, above) as folder:
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            self._mark.require_present()
            return None
        except OSError as error:
            raise translate_error(error, f"look at {key}", self.root) from error
        if not stat.S_ISREG(status.st_mode):
            raise translate_error(OSError(errno.EINVAL, ""), f"look at {key}", self.root)
        return Entry(key, status.st_size, status.st_mtime)

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for above, names in groupby((key.rpartition("/") for key in keys), itemgetter(0)):
                with contextlib.suppress(FileNotFoundError), link_safe_folders.open_folder(self.root, above) as folder:
                    for _, _, name in names:
                        with contextlib.suppress(FileNotFoundError):
                            os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise translate_error(error, "delete", self.root) from error

    def store_time(self) -> float:
        partial = self._create_partial_file("clock")
        try:
            return partial.modification_time()
        finally:
            partial.close()

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        limit, swept = self.store_time() - older_than_seconds, 0
        for folder, path, name in self._walk_files(prefix):
            if not name.startswith(_PARTIAL):
                continue
            target = f"{path}/{name[len(_PARTIAL) + _UNIQUE + 1 :]}"
            with contextlib.suppress(FileNotFoundError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime <= limit and not spare(target):
                    os.unlink(name, dir_fd=folder)
                    swept += 1
        return swept

    def _walk_files(self, prefix: str) -> Iterator[link_safe_folders.ListedFile]:
        try:
            with link_safe_folders.open_folder(self.root, prefix) as folder:
                yield from link_safe_folders.walk_files(folder, prefix)
        except FileNotFoundError:
            self._mark.require_present()
        except OSError as error:
            raise translate_error(error, "list", self.root) from error

    def _create_partial_file(self, key: str) -> PartialFile:
        """Create a temporary file beside the file of this key."""
        above, _, name = key.rpartition("/")
        try:
            self._make_folder(above)
            with link_safe_folders.open_folder(self.root, above) as folder:
                return PartialFile(folder, name)
        except FileNotFoundError as error:
            self._folders.discard(above)
            sentence = f"{self.root / above} vanished while the store was in use"
            raise StoreUnavailableError(sentence, remedy="check that the volume is still mounted") from error
        except OSError as error:
            raise translate_error(error, "create a file", self.root) from error

    @contextlib.contextmanager
    def _write_partial_file(self, key: str, data: Buffer) -> Iterator[PartialFile]:
        """A complete temporary file without its name; deleted at the end unless named."""
        partial = self._create_partial_file(key)
        try:
            try:
                partial.write(data)
                partial.sync_to_disk()
            except OSError as error:
                raise translate_error(error, "write", self.root) from error
            yield partial
        finally:
            partial.close()

    def _make_folder(self, path: str) -> None:
        if path in self._folders:
            return
        self._mark.require_present(writing=True)
        above = ""
        for name in path.split("/") if path else ():
            with link_safe_folders.open_folder(self.root, above) as folder, contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
                os.fsync(folder)
            above = f"{above}/{name}" if above else name
        self._folders.add(path)

    def _require_available_store(self, error: OSError) -> None:
        """Raise if the store is unavailable: an object is missing only in an available store."""
        if isinstance(error, FileNotFoundError):
            self._mark.require_present()
