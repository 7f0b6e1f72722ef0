"""The one way records become JSON and come back: msgspec, with pydantic's models inside.

A record may tell what somebody else has named: a file, a process. On Linux such a name is bytes, and Python keeps
those that are no text as lone surrogates (PEP 383), which JSON cannot say. They become U+FFFD here, so that no name can
keep a record from being written.
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
        return expected.model_validate(value, extra="ignore")  # as structs do: a newer version may have written it
    raise NotImplementedError(f"cannot decode {expected.__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)


def encode(value: msgspec.Struct) -> bytes:
    """JSON of a record, report or any other struct of the model."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(to_builtins(value))


def encode_with(hook: Callable[[Any], Any], value: msgspec.Struct) -> bytes:
    """As `encode`, of a struct that holds what only `hook` can turn into something that JSON knows."""
    try:
        return msgspec.json.encode(value, enc_hook=hook)
    except UnicodeEncodeError:
        return msgspec.json.encode(_legible(msgspec.to_builtins(value, enc_hook=hook)))


def decode(data: bytes | str, expected: type[T]) -> T:
    """Read what `encode` wrote; `expected` may be a union of tagged structs.

    Raises:
        msgspec.ValidationError: the data is of another shape, for example written by a newer version.
    """
    return msgspec.json.decode(data, type=expected, dec_hook=_decode_hook)


def to_builtins(value: msgspec.Struct) -> Any:
    """The same as plain dictionaries and lists, for JSON that others put together."""
    return _legible(msgspec.to_builtins(value, enc_hook=_encode_hook))


def _legible(value: Any) -> Any:
    """The same, with U+FFFD for each lone surrogate in a text."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_legible(key): _legible(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_legible(one) for one in value]
    return value
