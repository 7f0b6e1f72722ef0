"""What a node's credentials of one namespace can do to the others: nothing, on a store that enforces session policies.

A stolen node is its credentials, and whatever client it likes: here the store's own, and raw requests of S3.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable
from io import BytesIO

import minio.deleteobjects
import minio.error
import pytest

from cedana_sched.model.errors import StoreDeniedError, StoreUnavailableError
from cedana_sched.model.identity import Identity
from cedana_sched.store.credential_renewal import CredentialsRefusedError, SessionCredentials
from cedana_sched.store.s3 import S3Backend
from cedana_sched.store.scoped import ScopedBackend
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import S3Location
from cedana_sched.store.sts import Sessions, SessionSource
from tests.servers.seaweedfs import ROLE, Server, sts_server
from tests.servers.snapshots import take
from tests.servers.thief import client_with, is_refused, not_refused

__all__ = ["sts_server"]
pytestmark = [pytest.mark.s3, pytest.mark.exhaustive]  # the server takes minutes to build

MINE = "research.7c9e6679-7425-40de-944b-e07fc1f90ae7"
THEIRS = "finance.7c9e6679-7425-40de-944b-e07fc1f90ae7"
BEFORE = "research.00000000-7425-40de-944b-e07fc1f90ae7"
SHARED = "research"
PREFIX = "some/prefix"
SECRET = b"memory of theirs"
FOREIGN = (THEIRS, BEFORE, SHARED, f"{MINE}0")
"""Another namespace, one that had the name before, one that is its name alone, and one whose name begins as ours."""
MEMORY = bytes(range(256)) * 16 * 40


@dataclasses.dataclass
class Theft:
    """A bucket with something of every namespace in it, and a thief with credentials of `MINE`."""

    server: Server
    bucket: str
    sessions: Sessions

    def key(self, namespace: str, name: str = "packs/a-1") -> str:
        return f"{PREFIX}/v1/{namespace}/{name}"

    def scoped(self, *granted: str) -> ScopedBackend:
        """The store as an agent has it, whom the coordinator grants these namespaces."""

        def fetch(namespace: str) -> SessionCredentials:
            if namespace not in granted:
                raise CredentialsRefusedError("this node has no business there")
            return self.sessions.create_session(namespace, "node-1")

        values = self.server.location(self.bucket, PREFIX, access_key=None, secret_key=None)
        return ScopedBackend(values, fetch)

    def all_objects(self) -> dict[str, bytes]:
        owner = self.server.owner()
        names = [str(one.object_name) for one in owner.list_objects(self.bucket, recursive=True)]
        return {name: owner.get_object(self.bucket, name).read() for name in names}


@pytest.fixture
def theft(sts_server: Server) -> Theft:  # a fixture of that name
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    owner = sts_server.owner()
    owner.make_bucket(bucket)
    location: S3Location = sts_server.location(bucket, PREFIX)
    there = Theft(sts_server, bucket, Sessions(location, SessionSource(role_arn=ROLE)))
    for namespace in (*FOREIGN, MINE):
        owner.put_object(bucket, there.key(namespace), BytesIO(SECRET), len(SECRET))
    for name in ("root", f"{PREFIX}/probe/clock", f"other/v1/{MINE}/packs/a-1", f"v1/{MINE}/packs/a-1"):
        owner.put_object(bucket, name, BytesIO(SECRET), len(SECRET))
    return there


def test_credentials_of_a_namespace_do_all_that_its_snapshots_need(theft: Theft) -> None:
    store = SnapshotStore(theft.scoped(MINE))
    identity = Identity(MINE, "md")
    first = take(store, identity, {"pages-1.img": MEMORY}).ref
    second = take(store, identity, {"pages-1.img": MEMORY}).ref
    assert store.verify(second).ok
    store.remove(first)
    assert store.latest_snapshot_of(identity) is not None
    report = store.collect_in_turn(MINE, 0.0).report
    assert report is not None
    assert store.verify(second).ok


def test_a_pack_of_many_parts_is_written_and_given_up(theft: Theft) -> None:
    backend = theft.scoped(MINE)
    sink = backend.open_sink(f"v1/{MINE}/packs/large")
    block = bytes(1 << 20)
    for _ in range(20):
        sink.write(block)
    sink.finish()
    entry = backend.stat(f"v1/{MINE}/packs/large")
    assert entry is not None
    assert entry.size == 20 << 20
    given_up = backend.open_sink(f"v1/{MINE}/packs/given-up")
    for _ in range(20):
        given_up.write(block)
    given_up.abort()
    assert backend.stat(f"v1/{MINE}/packs/given-up") is None
    backend.delete([f"v1/{MINE}/packs/large"])
    assert backend.stat(f"v1/{MINE}/packs/large") is None


def test_an_agent_reaches_no_namespace_that_it_was_not_granted(theft: Theft) -> None:
    backend = theft.scoped(MINE)
    refusals: tuple[Callable[[], object], ...] = (
        lambda: backend.get(f"v1/{THEIRS}/packs/a-1", at_most=100),
        lambda: backend.put(f"v1/{THEIRS}/packs/b-1", b"x"),
        lambda: list(backend.list(f"v1/{THEIRS}")),
        lambda: backend.delete([f"v1/{THEIRS}/packs/a-1"]),
    )
    for call in refusals:
        with pytest.raises(CredentialsRefusedError):
            call()
    outside: tuple[Callable[[], object], ...] = (
        lambda: backend.folder_names("v1"),
        lambda: backend.get("probe/clock", at_most=100),
        backend.store_time,
    )
    for call in outside:
        with pytest.raises(StoreDeniedError, match="lies in no namespace"):
            call()


def reachable(theft: Theft, key: str, given: SessionCredentials) -> set[str]:
    """The attacks on a key that are not refused."""
    thief = client_with(given, theft.server.endpoint)
    return not_refused(thief, theft.bucket, key, theft.key(MINE))


@pytest.mark.parametrize("namespace", FOREIGN)
def test_a_thief_can_do_nothing_under_the_prefix_of_others(theft: Theft, namespace: str) -> None:
    before = theft.all_objects()
    assert reachable(theft, theft.key(namespace), theft.sessions.create_session(MINE, "node-1")) == set()
    assert theft.all_objects() == before


@pytest.mark.parametrize("key", ["root", f"{PREFIX}/probe/clock", f"other/v1/{MINE}/packs/a-1", f"v1/{MINE}/packs/a-1"])
def test_a_thief_can_do_nothing_elsewhere_in_the_bucket(theft: Theft, key: str) -> None:
    before = theft.all_objects()
    assert reachable(theft, key, theft.sessions.create_session(MINE, "node-1")) == set()
    assert theft.all_objects() == before


def test_the_same_attacks_succeed_on_what_the_credentials_are_of(theft: Theft) -> None:
    """Else they would show nothing."""
    given = theft.sessions.create_session(MINE, "node-1")
    assert {"get", "get a part", "look", "put", "put anew", "put in parts", "list its folder"} <= reachable(
        theft, theft.key(MINE), given
    )
    everything = SessionCredentials("owner-of-all", "a-secret-for-tests", "", 1.0)
    assert {"get", "put", "delete", "copy out", "copy in", "list its folder"} <= reachable(
        theft, theft.key(THEIRS), everything
    )


@pytest.mark.parametrize("prefix", ["", "v1/", *(f"{PREFIX}/{word}" for word in ("", "v1/", "v1/f", f"v1/{MINE}"))])
@pytest.mark.parametrize("recursive", [False, True])
def test_a_thief_learns_no_name_of_others(theft: Theft, prefix: str, *, recursive: bool) -> None:
    thief = client_with(theft.sessions.create_session(MINE, "node-1"), theft.server.endpoint)
    assert is_refused(lambda: list(thief.list_objects(theft.bucket, prefix=prefix, recursive=recursive)))


def test_a_thief_deletes_nothing_of_others_among_his_own(theft: Theft) -> None:
    """One request that names both."""
    thief = client_with(theft.sessions.create_session(MINE, "node-1"), theft.server.endpoint)
    targets = [minio.deleteobjects.DeleteObject(theft.key(namespace)) for namespace in (MINE, THEIRS)]
    with contextlib.suppress(minio.error.S3Error):  # some servers refuse it as a whole
        assert [one.code for one in thief.remove_objects(theft.bucket, targets)] == ["AccessDenied"]
    assert theft.key(THEIRS) in theft.all_objects()


def test_a_thief_gets_no_wider_credentials_with_his_own(theft: Theft) -> None:
    """Neither of another namespace, nor without a policy: what a session may not, one begun in it may not."""
    given = theft.sessions.create_session(MINE, "node-1")
    keys = {"access_key": given.access_key, "secret_key": given.secret_key}
    location = theft.server.location(theft.bucket, PREFIX, **keys)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_SESSION_TOKEN", given.session_token)
        for role in (ROLE, None):
            try:
                more = Sessions(location, SessionSource(role_arn=role)).create_session(THEIRS, "thief")
            except (StoreDeniedError, StoreUnavailableError):
                continue
            assert reachable(theft, theft.key(THEIRS), more) == set(), "the session was not narrowed by the first"


def test_credentials_without_their_token_are_none(theft: Theft) -> None:
    given = theft.sessions.create_session(MINE, "node-1")
    location = theft.server.location(theft.bucket, PREFIX, access_key=given.access_key, secret_key=given.secret_key)
    with pytest.raises(StoreDeniedError):
        S3Backend(location).get(f"v1/{MINE}/packs/a-1", at_most=100)
