"""Wrapping keys in a file that only its owner can read, such as a mounted Secret.

One key per line, `<id> <base64 of 32 bytes>`, the newest last. The file is read for each wrapping and unwrapping, which
are rare. So a new key takes effect without a restart.
"""

from __future__ import annotations

import base64
import os
import secrets
import stat
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cedana_sched.model.errors import SealedError, UsageError
from cedana_sched.model.path_segment_validation import is_segment
from cedana_sched.runtime_handler.atomic_write import write_atomically
from cedana_sched.store.sealing.aead import KEY_BYTES, NONCE_BYTES
from cedana_sched.store.sealing.key_provider import NotUnwrappedError, Wrapped

FIELD = "key file"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MOST_BYTES = 1 << 20
_HEAD = "# Wrapping keys of cedana-sched, the newest last. Without them no sealed snapshot can be read.\n"


class KeyFile:
    """A `KeyProvider` of the keys in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def description(self) -> str:
        return str(self._path)

    def newest_key_id(self) -> str:
        return next(reversed(self._read_keys()))

    def wrap(self, key: bytes, context: bytes) -> Wrapped:
        """Wrap a data key. Random nonce: a wrapping key wraps one data key per namespace, far less than 2**32."""
        keys = self._read_keys()
        key_id = next(reversed(keys))
        nonce = os.urandom(NONCE_BYTES)
        return Wrapped(key_id, nonce + AESGCM(keys[key_id]).encrypt(nonce, key, context))

    def unwrap(self, wrapped: Wrapped, context: bytes) -> bytes:
        keys = self._read_keys()
        if wrapped.key_id not in keys:
            sentence = f"{FIELD}: {self.description!r} has {', '.join(keys)}, and not {wrapped.key_id!r:.80}"
            raise SealedError(sentence, remedy="give the file that has this key")
        nonce, data = wrapped.data[:NONCE_BYTES], wrapped.data[NONCE_BYTES:]
        try:
            return AESGCM(keys[wrapped.key_id]).decrypt(nonce, data, context)
        except (InvalidTag, ValueError) as error:
            sentence = f"{FIELD}: {self.description!r}: its key {wrapped.key_id!r} does not unwrap this data key"
            remedy = "give the file with which the store was sealed; if it is that one, the store was modified"
            raise NotUnwrappedError(sentence, remedy=remedy) from error

    def _read_keys(self) -> dict[str, bytes]:
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read(_MOST_BYTES).decode("ascii")
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable(f"cannot be read: {error}", "make one with 'cedana-sched keys new FILE'") from error
        if mode & _OTHERS:
            raise self._unusable(f"has mode {stat.S_IMODE(mode):04o}, so others may use it", "chmod 600 it")
        return parse_keys(text, self.description)

    def _unusable(self, problem: str, remedy: str) -> UsageError:
        return UsageError(FIELD, self.description, problem, remedy=remedy)


def parse_keys(text: str, place: str) -> dict[str, bytes]:
    """Return the keys by id, in the order of the file; at least one.

    Raises:
        UsageError: names the file and the line, never the content.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key_id, _, encoded = line.strip().partition(" ")
        key = _decode_key(encoded.strip())
        if key is None or not is_segment(key_id) or key_id in keys:
            remedy = f"a line is an id of its own, a space, and {KEY_BYTES} bytes in base64"
            raise UsageError(FIELD, place, f"has no key in line {number}", remedy=remedy)
        keys[key_id] = key
    if not keys:
        raise UsageError(FIELD, place, "holds no key", remedy="make one with 'cedana-sched keys new FILE'")
    return keys


def generate_key_text() -> tuple[str, str]:
    """Return the id of a new key, and the text of a file with it."""
    key_id, line = _generate_key_line()
    return key_id, _HEAD + line


def create(path: Path) -> str:
    """Create a file with one key; return the key's id.

    Raises:
        UsageError: the file exists already, or cannot be written.
    """
    key_id, text = generate_key_text()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        remedy = "add a key to it with 'cedana-sched keys rotate', or name another file"
        raise UsageError(FIELD, str(path), "exists already", remedy=remedy) from error
    except OSError as error:
        raise UsageError(FIELD, str(path), f"cannot be written: {error.strerror}", remedy="name another") from error
    return key_id


def add_newest(path: Path) -> str:
    """Add a key, which wraps from now on; return the key's id.

    Raises:
        UsageError: the file has no keys, or cannot be written.
    """
    KeyFile(path).newest_key_id()
    key_id, line = _generate_key_line()
    before = path.read_text(encoding="ascii")
    try:
        write_atomically(path, (before.rstrip("\n") + "\n" + line).encode(), mode=0o600)
    except OSError as error:
        raise UsageError(FIELD, str(path), f"cannot be written: {error.strerror}", remedy="see its folder") from error
    return key_id


def _generate_key_line() -> tuple[str, str]:
    key_id = f"{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(4)}"
    return key_id, f"{key_id} {base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()}\n"


def _decode_key(encoded: str) -> bytes | None:
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:  # includes binascii's errors
        return None
    return key if len(key) == KEY_BYTES else None
