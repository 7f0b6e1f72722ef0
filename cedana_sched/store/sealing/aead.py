"""AES-256-GCM with a key per object or writer, and nonces that count from 0.

HKDF-SHA256 derives such a key from a data key and a random name of at least 128 bits. Each name is used once: so no
nonce repeats under a key. The kind of the object and its place are authenticated: it does not open in another place.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cedana_sched.model.errors import IntegrityError
from cedana_sched.store.backend import Buffer

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


def derive_key(secret: bytes, purpose: str, once: bytes = b"") -> bytes:
    """Derive a key of 32 bytes for `purpose`; another one for every `once`."""
    info = f"cedana-sched sealing 1: {purpose}".encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=once, info=info).derive(secret)


def encode_context(*words: str | bytes) -> bytes:
    """Encode words injectively, each with its length before it."""
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


class CountedKey:
    """A key under which each number, from 0 to 2**96, seals once: the number is the nonce. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def seal(self, number: int, data: Buffer, place: bytes) -> bytes:
        """Return the bytes sealed for `place`: 16 longer than `data`."""
        sealed = bytearray(len(data) + TAG_BYTES)
        self.seal_into(number, data, place, memoryview(sealed))
        return bytes(sealed)

    def seal_into(self, number: int, data: Buffer, place: bytes, target: memoryview) -> None:
        """Seal into a buffer of that length: to allocate one for each chunk costs more than to seal it."""
        self._cipher.encrypt_into(number.to_bytes(NONCE_BYTES, "little"), data, place, target)

    def open(self, number: int, data: Buffer, place: bytes) -> bytes:
        """Return the plaintext.

        Raises:
            IntegrityError: the data was sealed under another key, number or place, or was changed.
        """
        try:
            return self._cipher.decrypt(number.to_bytes(NONCE_BYTES, "little"), data, place)
        except InvalidTag as error:
            raise IntegrityError("its seal is broken: it was changed, or sealed for another place") from error
