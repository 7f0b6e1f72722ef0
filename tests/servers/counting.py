"""A store that counts what is asked of it: requests by kind, keys listed, bytes read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from cedana_sched.store.backend import Buffer, Entry
from cedana_sched.store.posix import PosixBackend


class CountingBackend(PosixBackend):
    """A folder; `requests` counts the calls that an S3 server would be asked, but for writes of large objects."""

    def __init__(self, *arguments: object) -> None:
        self.requests: Counter[str] = Counter()
        self.keys_listed = 0
        self.keys_read: list[str] = []
        self.bytes_read = 0
        self._counted = threading.Lock()
        super().__init__(*arguments)  # type: ignore[arg-type]

    def forget(self) -> None:
        """Count from zero again."""
        with self._counted:
            self.requests.clear()
            self.keys_listed = self.bytes_read = 0
            self.keys_read.clear()

    @property
    def reads(self) -> int:
        return self.requests["get"] + self.requests["get_range"]

    def get(self, key: str, *, at_most: int) -> bytes:
        data = super().get(key, at_most=at_most)
        self._read("get", key, len(data))
        return data

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        data = super().get_range(key, offset, length)
        self._read("get_range", key, len(data))
        return data

    def list(self, prefix: str) -> Iterator[Entry]:
        found = list(super().list(prefix))
        with self._counted:
            self.requests["list"] += 1
            self.keys_listed += len(found)
        return iter(found)

    def put(self, key: str, data: Buffer) -> None:
        self._count("put")
        super().put(key, data)

    def stat(self, key: str) -> Entry | None:
        self._count("stat")
        return super().stat(key)

    def _read(self, kind: str, key: str, length: int) -> None:
        with self._counted:
            self.requests[kind] += 1
            self.keys_read.append(key)
            self.bytes_read += length

    def _count(self, kind: str) -> None:
        with self._counted:
            self.requests[kind] += 1
