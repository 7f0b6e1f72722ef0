"""Objects in an S3-compatible bucket. obstore transfers the data; `stale_s3_uploads.py` does what obstore cannot.

Every call is bounded: connect, request and retries have timeouts, so that a dead store is an error within seconds, and
a frozen workload does not wait for it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import obstore
import structlog
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from cedana_sched.model.errors import StoreDeniedError, StoreError, StoreUnavailableError
from cedana_sched.store.backend import TRIALS, Backend, Buffer, Entry, MissingObjectError, oversized_error
from cedana_sched.store.credential_renewal import RenewedCredentials
from cedana_sched.store.stale_s3_uploads import sweep_uploads
from cedana_sched.store.storage_config import S3Location

if TYPE_CHECKING:  # not in the module at run time
    from obstore.store import S3Credential

PART_BYTES = 8 << 20
PARTS_IN_FLIGHT = 3
_QUEUED = 8
_CONNECT_TIMEOUT = timedelta(seconds=5)
_REQUEST_TIMEOUT = timedelta(seconds=30)
_RETRIES: Any = {
    "max_retries": 4,
    "retry_timeout": timedelta(seconds=20),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=3), "base": 2},
}
_WRONG_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403 Forbidden", "401 Unauthorized")
_EXPIRED = "400 Bad Request"
"""Source: Amazon S3 API, error responses: ExpiredToken, InvalidToken; a response to HEAD has only the status."""
_BEHIND_END = "416 Range Not Satisfiable"
"""Source: Amazon S3 API, GetObject: InvalidRange, also for any range of an empty object."""
_EVIDENCE_CHARACTERS = 300
_ABORTS = 3

_log = structlog.get_logger(__name__)


def translate_error(error: Exception, action: str, place: str) -> StoreError:
    """Translate an error of the server or the network into a store error."""
    text = str(error)
    sentence = f"cannot {action} in {place}"
    evidence = (text.partition("Debug source")[0].replace("\n", " ")[:_EVIDENCE_CHARACTERS],)
    if "NoSuchBucket" in text:
        return StoreDeniedError(f"{sentence}: there is no such bucket", remedy="create it", evidence=evidence)
    if isinstance(error, FileNotFoundError):
        return MissingObjectError(f"{sentence}: it is not there", evidence=evidence)
    if "QuotaExceeded" in text or "507 Insufficient" in text:  # Ceph returns it with 403
        remedy = "make room, or raise its quota"
        return StoreUnavailableError(f"{sentence}: it is full", remedy=remedy, evidence=evidence)
    if _is_denied(error):
        remedy = "check the keys, and that they may read, write, list and delete there"
        return StoreDeniedError(f"{sentence}: the server refuses these keys", remedy=remedy, evidence=evidence)
    if isinstance(error, NotSupportedError) or "501 Not Implemented" in text:
        return StoreDeniedError(f"{sentence}: the server cannot do this", remedy="use another", evidence=evidence)
    remedy = "check the endpoint, and that the server is running"
    return StoreUnavailableError(f"{sentence}: no good answer came", remedy=remedy, evidence=evidence)


def _is_denied(error: Exception) -> bool:
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return denied or any(word in str(error) for word in _WRONG_KEYS)


def _credential_provider(credentials: RenewedCredentials) -> Callable[[], S3Credential]:
    """Return a provider for obstore, which calls it in any thread when the current credentials are about to expire."""

    def provide() -> S3Credential:
        current, seconds = credentials.current()
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.session_token,
            "expires_at": datetime.now(tz=UTC) + timedelta(seconds=seconds),
        }

    return provide


class _UploadAbortedError(Exception):
    """Raised inside an upload to make obstore abort it."""


class S3Sink:
    """A large object: one request if it stays small, otherwise parts are uploaded in parallel while more arrive."""

    def __init__(self, backend: S3Backend, key: str) -> None:
        self._backend = backend
        self._key = key
        self._head: list[bytes] = []
        self._head_bytes = 0
        self._queue: queue.Queue[bytes | None] = queue.Queue(_QUEUED)
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._given_up = self._ended = self._end_seen = False

    def write(self, data: Buffer) -> None:
        if self._error is not None:
            raise self._backend.translate_renewing_credentials(self._error, "write a pack") from self._error
        owned = bytes(data)
        if self._thread is not None:
            self._queue.put(owned)
            return
        self._head.append(owned)
        self._head_bytes += len(owned)
        if self._head_bytes > PART_BYTES:
            name = f"store-upload-{self._key[-12:]}"
            self._thread = threading.Thread(target=self._upload, name=name, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        if self._thread is None:
            self._backend.put(self._key, b"".join(self._head))
            return
        self._send_end_mark()
        if self._error is not None:
            raise self._backend.translate_renewing_credentials(self._error, "finish a pack") from self._error

    def abort(self) -> None:
        self._given_up = True
        self._send_end_mark()
        if self._thread is not None and not isinstance(self._error, BaseError):  # else the server does not respond
            self._backend.abort_uploads(self._key)

    def _send_end_mark(self) -> None:
        """Send the end mark; cannot block forever, because the thread always consumes everything up to the mark."""
        if self._thread is not None:
            if not self._ended:
                self._ended = True
                self._queue.put(None)
            self._thread.join()

    def _upload(self) -> None:
        try:
            obstore.put(
                self._backend.objects,
                self._key,
                self._blocks(),
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_IN_FLIGHT,
            )
        except Exception as error:  # noqa: BLE001 - carried to the thread that writes or finishes
            self._error = error
            while not self._end_seen:
                self._end_seen = self._queue.get() is None

    def _blocks(self) -> Iterator[bytes]:
        yield from self._head
        self._head.clear()
        while (block := self._queue.get()) is not None:
            yield block
        self._end_seen = True
        if self._given_up:
            raise _UploadAbortedError


class S3Backend(Backend):
    """See `Backend`.

    Args:
        location: the bucket.
        credentials: sign requests instead of the location's own keys.
        trials: see `Backend`.
    """

    def __init__(
        self, location: S3Location, credentials: RenewedCredentials | None = None, *, trials: str = TRIALS
    ) -> None:
        self.location = location
        self._trials = trials
        self._credentials = credentials
        self._ranges = True
        self.objects = self._create_client()

    def _create_client(self) -> S3Store:
        location, keys = self.location, self.location.bucket_keys()
        options: dict[str, Any] = {"region": location.region}
        if keys is not None:
            options |= {"access_key_id": keys[0], "secret_access_key": keys[1]}
        if location.endpoint is not None:
            options["endpoint"] = location.endpoint.rstrip("/")
        if self._credentials is not None:
            options["credential_provider"] = _credential_provider(self._credentials)
        return S3Store(
            location.bucket,
            prefix=location.prefix or None,
            client_options={
                "allow_http": location.allow_http,
                "connect_timeout": _CONNECT_TIMEOUT,
                "timeout": _REQUEST_TIMEOUT,
            },
            retry_config=_RETRIES,
            **options,
        )

    @staticmethod
    def describe_location(location: S3Location) -> str:
        """Return a description of the location."""
        prefix = f"/{location.prefix}" if location.prefix else ""
        return f"the bucket {location.bucket}{prefix} at {location.endpoint or 'AWS'}"

    @property
    def description(self) -> str:
        return self.describe_location(self.location)

    @property
    def trials_folder(self) -> str:
        return self._trials

    def put(self, key: str, data: Buffer) -> None:
        try:
            obstore.put(self.objects, key, data, use_multipart=False)
        except (BaseError, OSError) as error:
            raise self.translate_renewing_credentials(error, "write") from error

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        try:
            obstore.put(self.objects, key, data, mode="create")
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise self.translate_renewing_credentials(error, "create") from error
        return True

    def open_sink(self, key: str) -> S3Sink:
        return S3Sink(self, key)

    def get(self, key: str, *, at_most: int) -> bytes:
        try:
            found = obstore.get(self.objects, key)
            if (size := found.meta["size"]) > at_most:
                raise oversized_error(key, size, at_most)
            return bytes(found.bytes())
        except (BaseError, OSError) as error:
            raise self._translate_for_key(error, f"read {key}", key) from error

    def get_range(self, key: str, offset: int, length: int) -> Buffer:
        if not self._ranges:
            return self._read_range_from_whole(key, offset, length)
        try:
            return memoryview(obstore.get_range(self.objects, key, start=offset, length=length))
        except (BaseError, OSError) as error:
            if "NotPartial" in str(error):
                self._ranges = False
                return self.get_range(key, offset, length)
            if _BEHIND_END in str(error):
                return b""
            raise self._translate_for_key(error, f"read {key}", key) from error

    def _read_range_from_whole(self, key: str, offset: int, length: int) -> memoryview:
        """Read a range from servers that return whole objects only; reads and keeps no more than needed."""
        part = bytearray()
        try:
            for block in obstore.get(self.objects, key):
                view = memoryview(block)
                part += view[offset : offset + length - len(part)]
                offset = max(0, offset - len(view))
                if len(part) == length:
                    break
        except (BaseError, OSError) as error:
            raise self._translate_for_key(error, f"read {key}", key) from error
        return memoryview(part)

    def list(self, prefix: str) -> Iterator[Entry]:
        try:
            for batch in obstore.list(self.objects, prefix):
                for one in batch:
                    yield Entry(one["path"], one["size"], one["last_modified"].timestamp())
        except (BaseError, OSError) as error:
            raise self.translate_renewing_credentials(error, "list") from error

    def folder_names(self, prefix: str) -> tuple[str, ...]:
        try:
            found = obstore.list_with_delimiter(self.objects, prefix)["common_prefixes"]
        except (BaseError, OSError) as error:
            raise self.translate_renewing_credentials(error, "list") from error
        return tuple(sorted(path.rstrip("/").rpartition("/")[2] for path in found))

    def stat(self, key: str) -> Entry | None:
        try:
            one = obstore.head(self.objects, key)
        except (BaseError, OSError) as error:
            explained = self._translate_for_key(error, f"look at {key}", key)
            if isinstance(explained, MissingObjectError):
                return None
            raise explained from error
        return Entry(key, one["size"], one["last_modified"].timestamp())

    def delete(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        if len(wanted) > 1:
            with contextlib.suppress(BaseError, OSError):  # not every server supports batch deletes
                obstore.delete(self.objects, wanted)
                return
        for key in wanted:
            try:
                obstore.delete(self.objects, key)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                raise self.translate_renewing_credentials(error, "delete") from error

    def store_time(self) -> float:
        key = f"{self._trials}/clock-{uuid4().hex}"
        self.put(key, b"")
        try:
            entry = self.stat(key)
        finally:
            self.delete([key])
        if entry is None:
            raise StoreUnavailableError(f"{self.description} lost an object that was just written")
        return entry.modified

    def abort_uploads(self, key: str) -> None:
        """Abort the rest of a pack's upload: a part in flight during the first abort can outlive it.

        Source: Amazon S3 API, AbortMultipartUpload, "it might be necessary to abort … multiple times". Never raises:
        garbage collection deletes the rest.
        """
        try:
            for _ in range(_ABORTS):
                if not sweep_uploads(self.location, f"{self._key_prefix}{key}", float("inf"), lambda _: False):
                    return
        except StoreUnavailableError as error:
            _log.warning("upload_not_aborted", key=key, error=str(error))

    def sweep_partial(self, prefix: str, older_than_seconds: float, spare: Callable[[str], bool]) -> int:
        until = self.store_time() - older_than_seconds
        whose = f"{self._key_prefix}{prefix}/"
        return sweep_uploads(self.location, whose, until, lambda key: spare(key.removeprefix(self._key_prefix)))

    def translate_renewing_credentials(self, error: Exception, action: str) -> StoreError:
        """Translate like `translate_error`; the next call uses other credentials than those that the store refuses."""
        is_refused = _is_denied(error) or _EXPIRED in str(error)
        if is_refused and self._credentials is not None and self._credentials.mark_refused():
            self.objects = self._create_client()
        return translate_error(error, action, self.description)

    def _translate_for_key(self, error: Exception, action: str, key: str) -> StoreError:
        """Translate like `translate_error`; a refused key may be missing if the client may list only its own folder.

        Source: Amazon S3 API, GetObject: a missing object yields 403 for a client that may not list the bucket.
        """
        if self._credentials is None or not isinstance(
            translate_error(error, action, self.description), StoreDeniedError
        ):
            return self.translate_renewing_credentials(error, action)
        try:
            is_there = self._is_listed(key)
        except (BaseError, OSError):
            is_there = True
        if is_there:
            return self.translate_renewing_credentials(error, action)
        return MissingObjectError(f"cannot {action} in {self.description}: it is not there")

    def _is_listed(self, key: str) -> bool:
        folder = key.rpartition("/")[0]
        for batch in obstore.list(self.objects, folder, offset=key[:-1]):  # exclusive: starts at the key
            for one in batch:
                if one["path"] >= key:
                    return one["path"] == key
        return False

    @property
    def _key_prefix(self) -> str:
        """Prefix of our keys in the bucket."""
        return f"{self.location.prefix}/" if self.location.prefix else ""
