"""What whoever can write to a sealed store lays among its data keys keeps no namespace from being saved."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cedana_sched.model.errors import IntegrityError, SealedError
from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.sealing import key_file
from cedana_sched.store.sealing.data_keys import MOST_TRIED
from tests.servers.counting import CountingBackend
from tests.servers.sealing import new_keys, sealed_store
from tests.servers.snapshots import take

WORKLOAD = Identity("team-a", "md")
STREAMS = {"core.img": b"memory"}
GREATEST = "f" * 32


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return new_keys(tmp_path)


@pytest.fixture
def store(tmp_path: Path, keys: Path) -> Path:
    """A sealed store with one snapshot."""
    take(sealed_store(tmp_path / "store", keys), WORKLOAD, STREAMS)
    return tmp_path / "store"


def data_keys(store: Path) -> list[str]:
    return sorted(path.name for path in (store / layout.data_keys_folder("team-a")).iterdir())


def lay(store: Path, name: str, content: bytes = b"no key") -> None:
    (store / layout.data_key_key("team-a", name)).write_bytes(content)


def later_than(name: str, seconds: int = 1) -> str:
    return f"{int(name[:10], 16) + seconds:010x}{'0' * 22}"


def record(key_id: str) -> bytes:
    return msgspec.msgpack.encode({"wrapped_by": key_id, "data": b"0" * 60})


def passed_over(store: Path, keys: Path) -> tuple[str, list[str]]:
    """Save once more: under which data key, and which were named as none."""
    with capture_logs() as told:
        manifest = take(sealed_store(store, keys), WORKLOAD, STREAMS)
    return manifest.data_key, [line["data_key"] for line in told if line["event"] == "data_key_passed_over"]


@pytest.mark.parametrize("what", ["no record", "not wrapped by our key", "wrapped by nobody's key"])
def test_what_is_none_is_named_and_passed_over(store: Path, keys: Path, what: str) -> None:
    [sound] = data_keys(store)
    ours = key_file.KeyFile(keys).newest_key_id()
    contents = {"no record": b"no key", "not wrapped by our key": record(ours), "wrapped by nobody's key": record("x")}
    forged = later_than(sound)
    lay(store, forged, contents[what])
    assert passed_over(store, keys) == (sound, [forged])


def test_names_of_the_future_are_not_even_read(store: Path, keys: Path) -> None:
    [sound] = data_keys(store)
    lay(store, GREATEST)
    assert passed_over(store, keys) == (sound, [])


def test_a_clock_that_is_wrong_makes_keys_that_are_used_where_there_is_no_other(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with monkeypatch.context() as ahead:
        ahead.setattr("cedana_sched.store.sealing.data_keys.time.time", lambda: now + 10 * 86_400)
        take(sealed_store(tmp_path / "store", keys), WORKLOAD, STREAMS)
    [made] = data_keys(tmp_path / "store")
    assert passed_over(tmp_path / "store", keys) == (made, [])


def test_where_none_is_left_another_is_made(store: Path, keys: Path) -> None:
    [sound] = data_keys(store)
    lay(store, sound)
    made, named = passed_over(store, keys)
    assert named == [sound]
    assert made not in (sound, "")


def test_where_a_key_that_is_not_here_may_unwrap_one_none_is_made(store: Path, tmp_path: Path) -> None:
    before = data_keys(store)
    with pytest.raises(SealedError, match="and not '"):
        take(sealed_store(store, new_keys(tmp_path, "others")), WORKLOAD, STREAMS)
    assert data_keys(store) == before


def test_any_number_of_them_costs_so_many_reads_and_no_more(store: Path, keys: Path) -> None:
    [sound] = data_keys(store)
    for number in range(3 * MOST_TRIED):
        lay(store, later_than(sound, number + 1))
    backend = CountingBackend(store)
    manifest = take(sealed_store(backend, keys), WORKLOAD, STREAMS)
    read = [key for key in backend.keys_read if key.startswith(layout.data_keys_folder("team-a"))]
    assert len(read) <= MOST_TRIED + 1, "and the key of the generation before"
    assert manifest.data_key in data_keys(store)


def test_all_others_are_wrapped_anew(store: Path, keys: Path) -> None:
    [sound] = data_keys(store)
    for digit in "0123456789abcdef":
        lay(store, digit * 32, record("x"))
    newest = key_file.add_newest(keys)
    with pytest.raises((SealedError, IntegrityError)):
        sealed_store(store, keys).rewrap("team-a")
    wrapped = msgspec.msgpack.decode((store / layout.data_key_key("team-a", sound)).read_bytes())
    assert wrapped["wrapped_by"] == newest
