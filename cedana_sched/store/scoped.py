"""A bucket of which this node may access a few namespaces, each with its own expiring credentials.

The second part of every key is its namespace (see `layout`), which selects the credentials; keys outside of namespaces
are inaccessible. Unfinished uploads cannot be listed (see `session_policy`): the bucket's lifecycle rules abort those
of dead writers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final

from cedana_sched.model.errors import StoreDeniedError
from cedana_sched.store import layout
from cedana_sched.store.backend import TRIALS, Backend, Buffer, Entry, Sink
from cedana_sched.store.credential_renewal import RenewedCredentials, SessionCredentials
from cedana_sched.store.s3 import S3Backend
from cedana_sched.store.storage_config import S3Location

MOST_OPEN: Final = 64
"""S3 clients held open. Credentials are kept until they expire: the credential service may be unavailable."""


class ScopedBackend(Backend):
    """See `Backend`. Raises `CredentialsRefusedError` for namespaces to which this node is not entitled.

    Args:
        location: without keys.
        fetch: returns credentials of a namespace, by its name in the store; blocks.
    """

    def __init__(self, location: S3Location, fetch: Callable[[str], SessionCredentials]) -> None:
        self._location = location
        self._fetch = fetch
        self._lock = threading.Lock()
        self._open: OrderedDict[str, S3Backend] = OrderedDict()
        self._credentials: dict[str, RenewedCredentials] = {}

    @property
    def description(self) -> str:
        return S3Backend.describe_location(self._location)

    def restricted_to_folder(self, folder: str) -> Backend:
        return self._backend_of(folder)

    def put(self, key: str, data: Buffer) -> None:
        self._backend_of(key).put(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._backend_of(key).put_if_absent(key, data)

    def open_sink(self, key: str) -> Sink:
        return self._backend_of(key).open_sink(key)

    def get(self, key: str, *, at_most: int) -> bytes:
        return self._backend_of(key).get(key, at_most=at_most)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        return self._backend_of(key).get_range(key, offset, length)

    def list(self, prefix: str) -> Iterator[Entry]:
        yield from self._backend_of(prefix).list(prefix)

    def folder_names(self, prefix: str) -> tuple[str, ...]:
        return self._backend_of(prefix).folder_names(prefix)

    def stat(self, key: str) -> Entry | None:
        return self._backend_of(key).stat(key)

    def delete(self, keys: Iterable[str]) -> None:
        for namespace, theirs in groupby(sorted(keys), self._namespace_of):
            self._backend_of(layout.namespace_folder(namespace)).delete(theirs)

    def store_time(self) -> float:
        raise self._denied_error("the clock")

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:  # noqa: ARG002
        return 0

    def _backend_of(self, key: str) -> S3Backend:
        """Return the backend of the key's namespace, with valid credentials."""
        namespace = self._namespace_of(key)
        with self._lock:
            if namespace not in self._open:
                self._open_client(namespace)
            self._open.move_to_end(namespace)
            backend, credentials = self._open[namespace], self._credentials[namespace]
        credentials.current()  # raise our own error, not the S3 client's
        return backend

    def _open_client(self, namespace: str) -> None:
        known = self._credentials.get(namespace)
        credentials = known or RenewedCredentials(lambda: self._fetch(namespace))
        trials = f"{layout.namespace_folder(namespace)}/{TRIALS}"
        self._open[namespace] = S3Backend(self._location, credentials, trials=trials)
        while len(self._open) > MOST_OPEN:
            self._open.popitem(last=False)
        kept = {name: one for name, one in self._credentials.items() if name in self._open or one.are_valid()}
        self._credentials = {**kept, namespace: credentials}

    def _namespace_of(self, key: str) -> str:
        root, _, rest = key.partition("/")
        namespace = rest.partition("/")[0]
        if root != layout.ROOT or not namespace:
            raise self._denied_error(key)
        return namespace

    def _denied_error(self, what: str) -> StoreDeniedError:
        sentence = f"{self.description}: {what} lies in no namespace, and this node has credentials of namespaces only"
        return StoreDeniedError(sentence, remedy="do this where the keys of the whole bucket are: in the coordinator")
