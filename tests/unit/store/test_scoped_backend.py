"""Each request carries the credentials of its own namespace, renewed while the client of the store lives on."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cedana_sched.model.errors import StoreDeniedError, StoreError, StoreUnavailableError
from cedana_sched.store import credential_renewal, scoped
from cedana_sched.store.backend import MissingObjectError
from cedana_sched.store.credential_renewal import (
    AGAIN_SECONDS,
    REFUSED_AGAIN_SECONDS,
    CredentialsRefusedError,
    SessionCredentials,
)
from cedana_sched.store.s3 import PART_BYTES
from cedana_sched.store.scoped import ScopedBackend
from cedana_sched.store.snapshot_store import open_backend
from cedana_sched.store.storage_config import S3Location, StorageConfig
from tests.servers.loopback import QuietHandler, serving

UID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
BIO, CFD, GONE = (f"{name}.{UID}" for name in ("bio", "cfd", "gone"))
LIFE = 200.0
"""Shorter than what obstore uses without a question, so that it asks for each request."""
_KEY = re.compile("<Key>(.*?)</Key>")
EMPTY = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>'


DENIED = b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'


class Store:
    """A server that says yes to everything, and remembers by whose token what was asked.

    With `listed` it refuses every object, as S3 refuses what is not there to who may not list the bucket, and lists
    these keys; with `lists_nothing` it refuses that, too. Tokens that it has `forgotten` it refuses as it `says`.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.url = ""
        self.listed: tuple[str, ...] | None = None
        self.lists_nothing = False
        self.forgotten: tuple[str, ...] = ()
        self.says = 403, DENIED

    def answer(self, method: str, path: str, named: list[str]) -> tuple[int, bytes]:
        if self.listed is not None and method in {"GET", "HEAD"}:
            parts = urlsplit(path)
            if "list-type=2" not in parts.query or self.lists_nothing:
                return 403, DENIED
            begin = parse_qs(parts.query)["start-after"][0]
            contents = "".join(
                f"<Contents><Key>{key}</Key><Size>1</Size><ETag>1</ETag>"
                "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                for key in self.listed
                if key > begin
            )
            return 200, EMPTY.replace(b"</ListBucketResult>", f"{contents}</ListBucketResult>".encode())
        if method == "POST":
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in named)
            return 200, f"<DeleteResult>{deleted}</DeleteResult>".encode()
        return 200, EMPTY

    def tokens(self) -> list[str]:
        return [token for token, _ in self.asked]


@pytest.fixture
def store() -> Iterator[Store]:
    there = Store()

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            named = _KEY.findall(sent) if self.command == "POST" else [self.path.removeprefix("/snapshots/")]
            token = self.headers.get("x-amz-security-token", "")
            there.asked += [(token, key) for key in named or [self.path]]
            status, answered = there.says if token in there.forgotten else there.answer(self.command, self.path, named)
            self.send_response(status)
            self.send_header("Content-Length", str(len(answered)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answered)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815  # names of the library

    with serving(Handler) as there.url:
        yield there


class Coordinator:
    """Gives credentials whose token names the namespace, and how many it has got."""

    def __init__(self) -> None:
        self.given: dict[str, int] = {}
        self.is_away = False
        self.now = 0.0
        self.life = LIFE

    def fetch(self, namespace: str) -> SessionCredentials:
        if self.is_away:
            raise StoreUnavailableError("nobody answers")
        if namespace == GONE:
            raise CredentialsRefusedError("no pod of it is here")
        self.given[namespace] = self.given.get(namespace, 0) + 1
        return SessionCredentials("key", "secret", f"{namespace.partition('.')[0]}-{self.given[namespace]}", self.life)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    there = Coordinator()

    def renewed(fetch: Callable[[], SessionCredentials]) -> credential_renewal.RenewedCredentials:
        return credential_renewal.RenewedCredentials(fetch, lambda: there.now)

    monkeypatch.setattr(scoped, "RenewedCredentials", renewed)
    return there


@pytest.fixture
def backend(store: Store, coordinator: Coordinator) -> ScopedBackend:
    location = S3Location(bucket="snapshots", endpoint=store.url, allow_http=True, prefix="lab")
    return ScopedBackend(location, coordinator.fetch)


def test_each_request_carries_the_credentials_of_its_namespace(
    backend: ScopedBackend, store: Store, coordinator: Coordinator
) -> None:
    for namespace in (BIO, CFD, BIO):
        backend.put(f"v1/{namespace}/packs/a-1", b"x")
        list(backend.list(f"v1/{namespace}/packs"))
    assert store.tokens() == ["bio-1", "bio-1", "cfd-1", "cfd-1", "bio-1", "bio-1"]
    assert store.asked[0][1] == f"lab/v1/{BIO}/packs/a-1"
    assert coordinator.given == {BIO: 1, CFD: 1}


def test_deletions_of_several_namespaces_go_each_by_its_own(backend: ScopedBackend, store: Store) -> None:
    backend.delete(f"v1/{namespace}/packs/a-1" for namespace in (BIO, CFD, BIO))
    assert {(token, key.split("/")[2]) for token, key in store.asked} == {("bio-1", BIO), ("cfd-1", CFD)}


def test_what_is_tried_is_tried_within_the_namespace(backend: ScopedBackend, store: Store) -> None:
    with contextlib.suppress(StoreUnavailableError):
        backend.restricted_to_folder(f"v1/{BIO}").store_time()
    assert store.asked
    assert all(key.startswith(f"lab/v1/{BIO}/probe/") for _, key in store.asked)
    assert backend.restricted_to_folder(f"v1/{BIO}").trials_folder == f"v1/{BIO}/probe"


def put_until(backend: ScopedBackend, store: Store, token: str) -> None:
    """Obstore asks again only a moment after it has asked (object_store's TokenCache: 100 ms)."""
    deadline = time.monotonic() + 10
    while store.tokens()[-1] != token:
        assert time.monotonic() < deadline, store.tokens()
        backend.put(f"v1/{BIO}/packs/a-1", b"x")


def test_credentials_are_renewed_while_the_client_lives_on(
    backend: ScopedBackend, store: Store, coordinator: Coordinator
) -> None:
    backend.put(f"v1/{BIO}/a", b"x")
    assert store.tokens() == ["bio-1"]
    coordinator.now += LIFE / 2
    put_until(backend, store, "bio-2")
    coordinator.is_away = True
    coordinator.now += LIFE / 2
    backend.put(f"v1/{BIO}/c", b"x")
    assert store.tokens()[-1] == "bio-2"
    coordinator.now += LIFE
    with pytest.raises(StoreUnavailableError, match="nobody answers"):
        backend.put(f"v1/{BIO}/d", b"x")
    coordinator.is_away = False
    coordinator.now += AGAIN_SECONDS
    put_until(backend, store, "bio-3")


EXPIRED = (
    b'<?xml version="1.0"?><Error><Code>ExpiredToken</Code><Message>The provided token has expired</Message></Error>'
)


@pytest.mark.parametrize("says", [(403, DENIED), (400, EXPIRED)])
@pytest.mark.parametrize(
    "call",
    [
        lambda there: there.put(f"v1/{BIO}/a", b"x"),
        lambda there: there.put_if_absent(f"v1/{BIO}/a", b"x"),
        lambda there: there.get_range(f"v1/{BIO}/a", 0, 1),
        lambda there: there.get(f"v1/{BIO}/a", at_most=100),
        lambda there: there.stat(f"v1/{BIO}/a"),
        lambda there: list(there.list(f"v1/{BIO}/packs")),
        lambda there: there.delete([f"v1/{BIO}/a"]),
        lambda there: written(there, 1),
        lambda there: written(there, PART_BYTES + 1),
    ],
)
def test_credentials_that_the_store_refuses_are_not_used_again(
    backend: ScopedBackend,
    store: Store,
    coordinator: Coordinator,
    call: Callable[[ScopedBackend], object],
    says: tuple[int, bytes],
) -> None:
    """It was started anew, and has forgotten its sessions; or the key was replaced that they were made of."""
    coordinator.life = 3600.0  # the client of the store asks for none meanwhile
    backend.put(f"v1/{BIO}/a", b"x")
    coordinator.now += REFUSED_AGAIN_SECONDS
    store.forgotten, store.says = ("bio-1",), says
    with pytest.raises((StoreDeniedError, StoreUnavailableError)):
        call(backend)
    store.asked.clear()
    with contextlib.suppress(StoreError):  # what this server answers to some of them is no good
        call(backend)
    assert set(store.tokens()) == {"bio-2"}


def written(backend: ScopedBackend, size: int) -> None:
    sink = backend.open_sink(f"v1/{BIO}/packs/a-1")
    sink.write(b"x" * size)
    sink.finish()


def test_store_that_refuses_what_is_new_does_not_get_newer_ones_all_the_time(
    backend: ScopedBackend, store: Store, coordinator: Coordinator
) -> None:
    store.forgotten = tuple(f"bio-{number}" for number in range(99))
    for _ in range(20):
        with pytest.raises(StoreDeniedError):
            backend.put(f"v1/{BIO}/a", b"x")
        coordinator.now += 1
    assert coordinator.given[BIO] == 2


def test_what_is_only_not_there_costs_no_credentials(
    backend: ScopedBackend, store: Store, coordinator: Coordinator
) -> None:
    store.listed = ()
    backend.stat(KEY)
    coordinator.now += REFUSED_AGAIN_SECONDS
    backend.stat(KEY)
    backend.stat(KEY)
    assert coordinator.given[BIO] == 1


def test_a_namespace_that_is_refused_is_no_request_to_the_store(backend: ScopedBackend, store: Store) -> None:
    with pytest.raises(CredentialsRefusedError, match="no pod of it is here"):
        backend.get(f"v1/{GONE}/packs/a-1", at_most=100)
    assert not store.asked


@pytest.mark.parametrize("key", ["probe/x", "v1", "v1/", "cedana-sched-store", "", "v2/bio/x"])
def test_what_lies_in_no_namespace_is_out_of_reach(backend: ScopedBackend, store: Store, key: str) -> None:
    with pytest.raises(StoreDeniedError, match="lies in no namespace"):
        backend.get(key, at_most=100)
    assert not store.asked


KEY = f"v1/{BIO}/collector"


def asked_of(backend: ScopedBackend) -> dict[str, str]:
    """What becomes of each way to read the key."""

    def outcome(read: Callable[[], object]) -> str:
        try:
            return repr(read())
        except (MissingObjectError, StoreDeniedError) as error:
            return type(error).__name__

    return {
        "get": outcome(lambda: backend.get(KEY, at_most=100)),
        "get_range": outcome(lambda: backend.get_range(KEY, 0, 1)),
        "stat": outcome(lambda: backend.stat(KEY)),
    }


def test_what_is_refused_and_not_listed_is_not_there(backend: ScopedBackend, store: Store) -> None:
    """S3 does not say so to who may list one folder of the bucket, and the first collection finds no `collector`."""
    missing = {"get": "MissingObjectError", "get_range": "MissingObjectError", "stat": "None"}
    denied = dict.fromkeys(missing, "StoreDeniedError")
    for keys, outcomes in (
        ((), missing),
        ((f"lab/{KEY}s", f"lab/v1/{BIO}/keys/a"), missing),
        ((f"lab/v1/{BIO}/collectoa", f"lab/{KEY}"), denied),
    ):
        store.listed = keys
        assert asked_of(backend) == outcomes, keys
    store.listed, store.lists_nothing = (), True
    assert asked_of(backend) == denied


def test_few_namespaces_are_kept_open(backend: ScopedBackend, coordinator: Coordinator, store: Store) -> None:
    for number in range(scoped.MOST_OPEN + 1):
        backend.restricted_to_folder(f"v1/n{number}.{UID}")
    assert len(backend._open) == scoped.MOST_OPEN
    assert not store.asked


def test_credentials_are_kept_as_long_as_they_are_valid(backend: ScopedBackend, coordinator: Coordinator) -> None:
    """Whoever gives them may be away when the namespace is asked for again."""
    everybody = [f"v1/n{number}.{UID}" for number in range(2 * scoped.MOST_OPEN)]
    for namespace in everybody:
        backend.restricted_to_folder(namespace)
    coordinator.is_away = True
    for namespace in everybody:
        backend.restricted_to_folder(namespace)
    coordinator.now += LIFE
    coordinator.is_away = False
    backend.restricted_to_folder(f"v1/{BIO}")
    assert len(backend._credentials) <= scoped.MOST_OPEN, "what has expired is not kept for ever"


def test_a_capture_gets_the_same_place_by_its_pipe_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody's")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the whole bucket")
    service = {"url": "https://c.ours.example/credentials", "tokenFile": "/t/token", "authorities": "/t/ca.crt"}
    config = StorageConfig.load({"s3": {"bucket": "snapshots", "credentials": service}})
    assert StorageConfig.load(config.dump_with_secrets()) == config
    assert config.s3 is not None
    assert config.s3.credentials is not None
    assert config.s3.credentials.token_file == Path("/t/token")
    assert config.s3.bucket_keys() is None
    assert isinstance(open_backend(config), ScopedBackend)


@pytest.mark.parametrize(
    ("more", "problem"),
    [({"accessKey": "a", "secretKey": "b"}, "leave out access_key"), ({"url": "http://c.ours.example"}, "https://")],
)
def test_a_place_that_cannot_be_meant(more: dict[str, str], problem: str) -> None:
    service = {"url": more.pop("url", "https://c.ours.example"), "tokenFile": "/t/token", "authorities": "/t/ca.crt"}
    with pytest.raises(ValueError, match=problem):
        StorageConfig.model_validate({"s3": {"bucket": "snapshots", "credentials": service, **more}})
