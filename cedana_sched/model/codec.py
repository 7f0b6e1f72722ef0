"""JSON encoding of the model's structs: msgspec, with nested pydantic models.

A record may contain foreign names (of a file, of a process). On Linux such names are bytes; Python maps undecodable
ones to lone surrogates (PEP 383), which JSON cannot represent. The codec replaces them by U+FFFD, so that no name
prevents a record from being written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel

T = TypeVar("T")


def _encode_hook(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True)
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def _decode_hook(expected: type, value: Any) -> Any:
    if issubclass(expected, BaseModel):
        return expected.model_validate(value, extra="ignore")  # as structs do: the writer may be newer
    raise NotImplementedError(f"cannot decode {expected.__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)


def encode(value: msgspec.Struct) -> bytes:
    """Encode a record, report or other struct of the model as JSON."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(to_builtins(value))


def encode_with(hook: Callable[[Any], Any], value: msgspec.Struct) -> bytes:
    """Encode like `encode`, with `hook` converting values that are not JSON types."""
    try:
        return msgspec.json.encode(value, enc_hook=hook)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_lone_surrogates(msgspec.to_builtins(value, enc_hook=hook)))


def decode(data: bytes | str, expected: type[T]) -> T:
    """Decode the output of `encode`; `expected` may be a union of tagged structs.

    Raises:
        msgspec.ValidationError: the data has another shape, for example because a newer version wrote it.
    """
    return msgspec.json.decode(data, type=expected, dec_hook=_decode_hook)


def to_builtins(value: msgspec.Struct) -> Any:
    """Convert to plain dictionaries and lists, for embedding in other JSON."""
    return _replace_lone_surrogates(msgspec.to_builtins(value, enc_hook=_encode_hook))


def _replace_lone_surrogates(value: Any) -> Any:
    """Replace each lone surrogate in texts by U+FFFD."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_replace_lone_surrogates(key): _replace_lone_surrogates(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_lone_surrogates(one) for one in value]
    return value
