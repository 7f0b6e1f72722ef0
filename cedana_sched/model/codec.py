"""The one way records become JSON and come back: msgspec, with pydantic's models inside."""

from __future__ import annotations

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
        return expected.model_validate(value)
    raise NotImplementedError(f"cannot decode {expected.__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_encode_hook)


def encode(value: msgspec.Struct) -> bytes:
    """JSON of a record, report or any other struct of the model."""
    return _encoder.encode(value)


def decode(data: bytes | str, expected: type[T]) -> T:
    """Read what `encode` wrote; `expected` may be a union of tagged structs.

    Raises:
        msgspec.ValidationError: the data is of another shape, for example written by a newer version.
    """
    return msgspec.json.decode(data, type=expected, dec_hook=_decode_hook)


def to_builtins(value: msgspec.Struct) -> Any:
    """The same as plain dictionaries and lists, for JSON output that a person asked for."""
    return msgspec.to_builtins(value, enc_hook=_encode_hook)
