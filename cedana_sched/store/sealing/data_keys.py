"""Data keys: they seal a namespace's objects, and are stored beside them, wrapped.

`keys/<data key>` holds one, wrapped for this namespace and this name: under another name it does not unwrap. Usually a
namespace has one. Two writers that start at the same moment in an empty namespace may create two. Both are valid, and
new snapshots use the one with the greater name. Names begin with the time.

Any client that can write to the store can add objects there. Objects that cannot be unwrapped are logged
(`data_key_passed_over`) and skipped. Names of the future sort last.
"""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import structlog

from cedana_sched.model.errors import IntegrityError, SealedError
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, MissingObjectError
from cedana_sched.store.bounded_listing import remove_in_parts
from cedana_sched.store.decoding import UNREADABLE
from cedana_sched.store.sealing.aead import KEY_BYTES, encode_context
from cedana_sched.store.sealing.key_provider import KeyProvider, NotUnwrappedError, Wrapped

REMEMBERED_SECONDS = 60.0
"""How long a process keeps a data key in memory, also one that was erased meanwhile."""
MOST_TRIED = 32
"""Maximum objects below `keys/` that are read before a dump, while its workload is frozen."""
MOST_BYTES = 4096
"""Bytes of one wrapped data key; 110 are usual."""
FUTURE_SECONDS = 86_400.0

_log = structlog.get_logger(__name__)


class DataKey(NamedTuple):
    """32 random bytes; sealed objects reference them by `name`."""

    name: str
    secret: bytes


class _WrappedKeyRecord(msgspec.Struct, frozen=True):
    wrapped_by: str
    data: bytes


_decoder = msgspec.msgpack.Decoder(_WrappedKeyRecord)


class DataKeys:
    """Data keys of one store. Thread-safe."""

    def __init__(self, backend: Backend, provider: KeyProvider) -> None:
        self._backend = backend
        self._provider = provider
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], tuple[DataKey, float]] = {}

    def for_writing(self, namespace: str) -> DataKey:
        """Return the newest valid data key of a namespace; a new one if there is none.

        Raises:
            SealedError: none could be unwrapped, and one's wrapping key is not available.
            StoreError: the store failed.
        """
        missing: SealedError | None = None
        for name in _sort_newest_first(_data_key_names(self._backend, namespace)):
            try:
                return self.find_data_key(namespace, name)
            except (NotUnwrappedError, IntegrityError) as error:
                _log.warning("data_key_passed_over", namespace=namespace, data_key=name, error=str(error))
            except SealedError as error:
                _log.warning("data_key_passed_over", namespace=namespace, data_key=name, error=str(error))
                missing = missing or error
        if missing is not None:
            sentence = f"{missing.message}, with which namespace {namespace} is sealed"
            raise SealedError(sentence, remedy=missing.remedy) from missing
        return self._create_key(namespace)

    def find_data_key(self, namespace: str, name: str) -> DataKey:
        """Return the data key of a name.

        Raises:
            SealedError: the key cannot be unwrapped.
            IntegrityError: the key was erased, or never existed.
        """
        with self._lock:
            key, until = self._known.get((namespace, name), (None, 0.0))
        if key is None or time.monotonic() > until:
            wrapped = self._read_wrapped(namespace, name)
            key = DataKey(name, self._provider.unwrap(wrapped, _wrap_context(namespace, name)))
            if len(key.secret) != KEY_BYTES:
                raise IntegrityError(f"data key {name} of namespace {namespace} is none")
            self._remember(namespace, key)
        return key

    def rewrap(self, namespace: str) -> int:
        """Rewrap, with the newest wrapping key, data keys wrapped by an older one; return how many.

        Raises:
            SealedError: a key cannot be unwrapped; all others are rewrapped.
        """
        newest = self._provider.newest_key_id()
        changed = 0
        failed: SealedError | IntegrityError | None = None
        for name in _data_key_names(self._backend, namespace):
            try:
                changed += self._rewrap_one(namespace, name, newest)
            except (SealedError, IntegrityError) as error:
                failed = failed or error
        if failed is not None:
            raise failed
        return changed

    def _rewrap_one(self, namespace: str, name: str, newest: str) -> bool:
        wrapped = self._read_wrapped(namespace, name)
        if wrapped.key_id == newest:
            return False
        secret = self._provider.unwrap(wrapped, _wrap_context(namespace, name))
        self._backend.put(layout.data_key_key(namespace, name), self._wrap_record(namespace, name, secret))
        return True

    def _create_key(self, namespace: str) -> DataKey:
        key = DataKey(f"{_format_name_time(time.time())}{secrets.token_hex(11)}", secrets.token_bytes(KEY_BYTES))
        self._backend.put(layout.data_key_key(namespace, key.name), self._wrap_record(namespace, *key))
        self._remember(namespace, key)
        return key

    def _wrap_record(self, namespace: str, name: str, secret: bytes) -> bytes:
        return msgspec.msgpack.encode(_WrappedKeyRecord(*self._provider.wrap(secret, _wrap_context(namespace, name))))

    def _read_wrapped(self, namespace: str, name: str) -> Wrapped:
        try:
            record = _decoder.decode(self._backend.get(layout.data_key_key(namespace, name), at_most=MOST_BYTES))
        except MissingObjectError as error:
            raise IntegrityError(f"data key {name} of namespace {namespace} is not in the store") from error
        except UNREADABLE as error:
            raise IntegrityError(f"data key {name} of namespace {namespace} is damaged: {error}") from error
        return Wrapped(record.wrapped_by, record.data)

    def _remember(self, namespace: str, key: DataKey) -> None:
        with self._lock:
            self._known[namespace, key.name] = key, time.monotonic() + REMEMBERED_SECONDS


def has_data_keys(backend: Backend, namespace: str) -> bool:
    """Return whether a namespace has wrapped data keys. Without any, nothing in it is sealed."""
    return next(_data_key_names(backend, namespace), None) is not None


def _sort_newest_first(names: Iterable[str]) -> list[str]:
    """Sort names, newest first, but names of the future last: no clock is that wrong."""
    future = _format_name_time(time.time() + FUTURE_SECONDS)
    return heapq.nlargest(MOST_TRIED, names, key=lambda name: (name < future, name))


def _format_name_time(moment: float) -> str:
    return f"{int(moment):010x}"


def erase_data_keys(backend: Backend, namespace: str) -> int:
    """Delete all data keys of a namespace, which makes its sealed objects unreadable; return how many."""
    return remove_in_parts(
        backend, (layout.data_key_key(namespace, name) for name in _data_key_names(backend, namespace))
    )


def _data_key_names(backend: Backend, namespace: str) -> Iterator[str]:
    folder = layout.data_keys_folder(namespace)
    for entry in backend.list(folder):
        name = entry.key.removeprefix(f"{folder}/")
        if layout.is_data_key_name(name):
            yield name


def _wrap_context(namespace: str, name: str) -> bytes:
    return encode_context("data key", namespace, name)
