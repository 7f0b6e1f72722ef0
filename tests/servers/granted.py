"""A store of which whoever comes may do what a session policy says, and nothing else."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Iterator

from cedana_sched.model.errors import StoreDeniedError
from cedana_sched.store.backend import Backend, Buffer, Entry, Sink

ARN = "arn:aws:s3:::bucket/"
"""Before each key: the policy is one for the bucket of this name, without a prefix."""


class GrantedBackend(Backend):
    """See `Backend`. `refused` is what was asked for and is not allowed.

    Args:
        inner: what is really asked.
        policy: in JSON.
        folder: below which it is tried; see `Backend.restricted_to_folder`.
    """

    def __init__(self, inner: Backend, policy: str, folder: str) -> None:
        self._inner = inner
        self._statements = json.loads(policy)["Statement"]
        self._folder = folder
        self.refused: list[tuple[str, str]] = []

    @property
    def description(self) -> str:
        return self._inner.description

    @property
    def trials_folder(self) -> str:
        return f"{self._folder}/probe"

    def is_allowed(self, action: str, key: str) -> bool:
        named = [one for one in self._statements if one["Effect"] == "Allow" and f"s3:{action}" in one["Action"]]
        if action == "ListBucket":
            return any(fnmatch.fnmatchcase(key, one["Condition"]["StringLike"]["s3:prefix"][0]) for one in named)
        return any(fnmatch.fnmatchcase(ARN + key, pattern) for one in named for pattern in one["Resource"])

    def _require(self, action: str, key: str) -> None:
        if not self.is_allowed(action, key):
            self.refused.append((action, key))
            raise StoreDeniedError(f"{action} of {key} is not allowed")

    def put(self, key: str, data: Buffer) -> None:
        self._require("PutObject", key)
        self._inner.put(key, data)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self._require("PutObject", key)
        return self._inner.put_if_absent(key, data)

    def open_sink(self, key: str) -> Sink:
        self._require("PutObject", key)
        return self._inner.open_sink(key)

    def get(self, key: str, *, at_most: int) -> bytes:
        self._require("GetObject", key)
        return self._inner.get(key, at_most=at_most)

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        self._require("GetObject", key)
        return self._inner.get_range(key, offset, length)

    def list(self, prefix: str) -> Iterator[Entry]:
        self._require("ListBucket", f"{prefix}/")
        return self._inner.list(prefix)

    def folder_names(self, prefix: str) -> tuple[str, ...]:
        self._require("ListBucket", f"{prefix}/")
        return self._inner.folder_names(prefix)

    def stat(self, key: str) -> Entry | None:
        self._require("GetObject", key)
        return self._inner.stat(key)

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        for key in wanted:
            self._require("DeleteObject", key)
        self._inner.delete(wanted)

    def store_time(self) -> float:
        for action in ("PutObject", "GetObject", "DeleteObject"):  # as S3Backend finds it
            self._require(action, f"{self.trials_folder}/clock-1")
        return self._inner.store_time()

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        return 0
