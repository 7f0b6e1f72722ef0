"""Objects as files of one folder: a local disk, NFS, CephFS, Lustre or a mounted volume.

A file appears under its name complete and on stable storage, or not at all: it is written under another name,
flushed, then linked (exclusive) or renamed (replacing), and the folder is flushed after that.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cedana_sched.model.errors import StoreDeniedError, StoreError, StoreUnavailableError
from cedana_sched.store.backend import Buffer, Entry, MissingObjectError
from cedana_sched.store.mark import StoreMark

_PARTIAL = ".partial-"
_UNIQUE = 12
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})


def explain(error: OSError, action: str, root: Path) -> StoreError:
    """The store's own error for what the kernel said."""
    sentence = f"cannot {action} in {root}: {error.strerror or error}"
    if isinstance(error, FileNotFoundError):
        return MissingObjectError(sentence)
    if error.errno in _FULL:
        return StoreUnavailableError(sentence, remedy="free space there, or remove old snapshots")
    if error.errno in _DENIED:
        return StoreDeniedError(sentence, remedy="make the folder writable for this user")
    return StoreUnavailableError(sentence, remedy="check the disk or the file server")


class PosixSink:
    """A file being written under a name that nobody reads."""

    def __init__(self, backend: PosixBackend, key: str) -> None:
        self._backend = backend
        self._target = backend.path_of(key)
        self._descriptor, self._partial = backend.create_partial(self._target)

    def write(self, data: Buffer) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise explain(error, "write a pack", self._backend.root) from error

    def finish(self) -> None:
        try:
            os.fsync(self._descriptor)
            self._close()
            self._partial.rename(self._target)
            flush_folder(self._target.parent)
        except OSError as error:
            raise explain(error, "finish a pack", self._backend.root) from error

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._close()
        with contextlib.suppress(OSError):
            self._partial.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class PosixBackend:
    """See `Backend`. The root is created if only its last part is missing, and no store was ever seen there.

    A store that is away is an error of every call that would find something missing, or write; see `mark`.
    """

    def __init__(self, root: Path, notes: Path | None = None) -> None:
        self.root = root
        self._folders: set[Path] = set()
        self._mark = StoreMark(root, notes)
        if self._mark.was_seen:
            return
        try:
            root.mkdir(exist_ok=True, mode=0o700)
            self._mark.require()
        except FileNotFoundError as error:
            remedy = f"create {root.parent}, or mount the file system that holds it"
            raise StoreDeniedError(f"{root.parent} does not exist", remedy=remedy) from error
        except OSError as error:
            raise explain(error, "create the store", root.parent) from error

    def require_there(self) -> None:
        """See `StoreMark.require_there`."""
        self._mark.require_there()

    @property
    def description(self) -> str:
        return f"the folder {self.root}"

    def path_of(self, key: str) -> Path:
        return self.root / key

    def create_partial(self, target: Path) -> tuple[int, Path]:
        """A descriptor on a new file beside `target`, and its name."""
        try:
            self._make_folder(target.parent)
            partial = target.parent / f"{_PARTIAL}{secrets.token_hex(_UNIQUE // 2)}-{target.name}"
            return os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), partial
        except FileNotFoundError as error:
            self._folders.discard(target.parent)
            sentence = f"{target.parent} vanished while the store was in use"
            raise StoreUnavailableError(sentence, remedy="check that the volume is still mounted") from error
        except OSError as error:
            raise explain(error, "create a file", self.root) from error

    def put(self, key: str, data: Buffer) -> None:
        partial = self._write_partial(key, data)
        try:
            partial.rename(self.path_of(key))
            flush_folder(partial.parent)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise explain(error, "write", self.root) from error

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        partial = self._write_partial(key, data)
        try:
            os.link(partial, self.path_of(key))
        except FileExistsError:
            return False
        except OSError as error:
            raise explain(error, "commit", self.root) from error
        finally:
            partial.unlink(missing_ok=True)
        try:
            flush_folder(partial.parent)
        except OSError as error:
            raise explain(error, "commit", self.root) from error
        return True

    def open_sink(self, key: str) -> PosixSink:
        return PosixSink(self, key)

    def get(self, key: str) -> bytes:
        try:
            return self.path_of(key).read_bytes()
        except OSError as error:
            self._require_for(error)
            raise explain(error, f"read {key}", self.root) from error

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        try:
            descriptor = os.open(self.path_of(key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(descriptor, length, offset)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._require_for(error)
            raise explain(error, f"read {key}", self.root) from error

    def list(self, prefix: str) -> Iterator[Entry]:
        for path in self._walk(prefix):
            if not path.name.startswith(_PARTIAL):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    yield Entry(path.relative_to(self.root).as_posix(), status.st_size, status.st_mtime)

    def folders(self, prefix: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(one.name for one in self.path_of(prefix).iterdir() if one.is_dir()))
        except FileNotFoundError:
            self._mark.require()
            return ()
        except OSError as error:
            raise explain(error, "list", self.root) from error

    def stat(self, key: str) -> Entry | None:
        try:
            status = self.path_of(key).stat()
        except FileNotFoundError:
            self._mark.require()
            return None
        except OSError as error:
            raise explain(error, f"look at {key}", self.root) from error
        return Entry(key, status.st_size, status.st_mtime)

    def delete(self, keys: Iterable[str]) -> None:
        try:
            for key in keys:
                self.path_of(key).unlink(missing_ok=True)
        except OSError as error:
            raise explain(error, "delete", self.root) from error

    def now(self) -> float:
        descriptor, partial = self.create_partial(self.root / "clock")
        try:
            return os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
            partial.unlink(missing_ok=True)

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        limit, swept = self.now() - older_than_seconds, 0
        for path in self._walk(prefix):
            if not path.name.startswith(_PARTIAL):
                continue
            target = path.with_name(path.name[len(_PARTIAL) + _UNIQUE + 1 :])
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime <= limit and not spare(target.relative_to(self.root).as_posix()):
                    path.unlink()
                    swept += 1
        return swept

    def _walk(self, prefix: str) -> Iterator[Path]:
        def fail(error: OSError) -> None:
            self._require_for(error)
            if not isinstance(error, FileNotFoundError):
                raise explain(error, "list", self.root) from error

        for folder, _, names in os.walk(self.root / prefix, onerror=fail):
            for name in names:
                yield Path(folder, name)

    def _write_partial(self, key: str, data: Buffer) -> Path:
        descriptor, partial = self.create_partial(self.path_of(key))
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise explain(error, "write", self.root) from error
        finally:
            os.close(descriptor)
        return partial

    def _make_folder(self, folder: Path) -> None:
        if folder in self._folders:
            return
        self._mark.require(writing=True)
        missing, above = [], folder
        while above != self.root and not above.is_dir():
            missing.append(above)
            above = above.parent
        for one in reversed(missing):
            one.mkdir(exist_ok=True, mode=0o700)
            flush_folder(one.parent)
        self._folders.add(folder)

    def _require_for(self, error: OSError) -> None:
        """What is missing is missing only in a store that is there."""
        if isinstance(error, FileNotFoundError):
            self._mark.require()


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
