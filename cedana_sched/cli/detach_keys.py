"""The keys that end `attach` and leave the job alone: Docker's form, as `ctrl-p,ctrl-q`."""

from __future__ import annotations

from cedana_sched.model.errors import UsageError

DEFAULT = "ctrl-p,ctrl-q"
_CONTROL = "ctrl-"
_LAST_ASCII = 127


def parse_detach_keys(text: str) -> bytes:
    r"""Return the bytes that the keys send: single characters, and `ctrl-` with a letter or one of ``@[\]^_``.

    Raises:
        UsageError: a key has another form.
    """
    return bytes(_parse_key(key, text) for key in text.split(","))


def _parse_key(key: str, text: str) -> int:
    name = key.removeprefix(_CONTROL)
    if len(name) == 1 and name.isprintable() and ord(name) < _LAST_ASCII:
        if name == key:
            return ord(key)
        if "@" <= name.upper() <= "_":
            return ord(name.upper()) - ord("@")
    remedy = f"write keys as in {DEFAULT}: characters of ASCII, or ctrl- and one of a-z @ [ \\ ] ^ _"
    raise UsageError("detach-keys", text, f"has a key {key!r} that cannot be typed", remedy=remedy)


class DetachFilter:
    """Finds the keys in typed input, also if they arrive one by one."""

    def __init__(self, keys: bytes) -> None:
        self._keys = keys
        self._held = b""
        """Typed input that may be the beginning of the keys, and is not passed on yet."""

    def filter(self, data: bytes) -> tuple[bytes, bool]:
        """Return the input to pass on, and whether the keys were typed; what follows them is dropped."""
        data = self._held + data
        before, found, _ = data.partition(self._keys)
        if found:
            return before, True
        size = next(size for size in range(len(self._keys) - 1, -1, -1) if data.endswith(self._keys[:size]))
        self._held = data[len(data) - size :]
        return data[: len(data) - size], False
