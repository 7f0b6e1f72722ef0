"""Wrapping keys in a file: read as they were written, refused in words, and nobody else's."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.model.errors import SealedError, UsageError
from cedana_sched.store.sealing import key_file
from cedana_sched.store.sealing.key_file import KeyFile, parse_keys
from cedana_sched.store.sealing.key_provider import Wrapped
from tests.servers.sealing import new_keys

SECRET = bytes(range(32))
ENCODED = base64.b64encode(SECRET).decode()


def test_a_new_file_is_its_owners_alone_and_wraps(tmp_path: Path) -> None:
    keys = new_keys(tmp_path)

    assert keys.stat().st_mode & 0o777 == 0o600
    wrapped = KeyFile(keys).wrap(SECRET, b"here")
    assert SECRET not in wrapped.data
    assert KeyFile(keys).unwrap(wrapped, b"here") == SECRET


def test_a_file_is_never_written_over(tmp_path: Path) -> None:
    keys = new_keys(tmp_path)
    before = keys.read_bytes()

    with pytest.raises(UsageError, match=r"keys' exists already .*rotate"):
        key_file.create(keys)
    assert keys.read_bytes() == before


def test_the_newest_key_wraps_and_all_unwrap(tmp_path: Path) -> None:
    keys = new_keys(tmp_path)
    provider = KeyFile(keys)
    first = provider.wrap(SECRET, b"here")

    newest = key_file.add_newest(keys)

    assert keys.stat().st_mode & 0o777 == 0o600
    assert provider.newest_key_id() == newest != first.key_id
    assert provider.wrap(SECRET, b"here").key_id == newest
    assert provider.unwrap(first, b"here") == SECRET


def test_what_was_wrapped_for_another_place_is_refused(tmp_path: Path) -> None:
    provider = KeyFile(new_keys(tmp_path))
    with pytest.raises(SealedError, match="does not unwrap this data key"):
        provider.unwrap(provider.wrap(SECRET, b"here"), b"there")


def test_a_key_that_is_not_here_is_named(tmp_path: Path) -> None:
    wrapped = KeyFile(new_keys(tmp_path, "theirs")).wrap(SECRET, b"here")
    with pytest.raises(SealedError, match=f"key file: .*/ours' has .*, and not '{wrapped.key_id}'"):
        KeyFile(new_keys(tmp_path, "ours")).unwrap(wrapped, b"here")


@given(st.binary(max_size=80))
def test_whatever_lies_in_the_store_is_unwrapped_or_refused(data: bytes) -> None:
    """The parser of wrapped keys reads what anybody may have written."""
    provider = _Known()
    with pytest.raises(SealedError):
        provider.unwrap(Wrapped("one", data), b"here")


class _Known(KeyFile):
    """A file that is not on the disk: hypothesis asks for it hundreds of times."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))

    def _read_keys(self) -> dict[str, bytes]:
        return {"one": SECRET}


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    keys = new_keys(tmp_path)
    keys.chmod(0o640)
    with pytest.raises(UsageError, match=r"key file: '.*/keys' has mode 0640.*chmod 600"):
        KeyFile(keys).newest_key_id()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be read: .*keys new FILE"):
        KeyFile(tmp_path / "nowhere").newest_key_id()


@pytest.mark.parametrize("text", [
    "", "# nothing\n", "one\n", f"one {ENCODED[:-4]}\n", f"one {ENCODED}x\n", f"a/b {ENCODED}\n", f"../x {ENCODED}\n",
    f"one {ENCODED}\none {ENCODED}\n",
])  # fmt: skip
def test_a_file_that_holds_no_keys_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(UsageError, match=r"key file: 'place' (has|holds) no key") as caught:
        parse_keys(text, "place")
    assert ENCODED[:8] not in str(caught.value)


@given(st.text())
def test_any_text_is_keys_or_refused(text: str) -> None:
    try:
        keys = parse_keys(text, "place")
    except UsageError:
        return
    assert all(len(key) == 32 for key in keys.values())


def test_keys_come_in_the_order_of_the_file() -> None:
    assert list(parse_keys(f"# about\n\nb {ENCODED}\na {ENCODED}\n", "place")) == ["b", "a"]
