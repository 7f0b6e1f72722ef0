"""Records in JSON that a later version, or another program, may have written: no value of another type is assumed.

Some are files beside CRIU's images, `{"version": NUMBER, …}`. Standard library only.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

Decoded = TypeVar("Decoded")

_MOST_EVIDENCE = 200
"""Characters of what is wrong with a record in an error."""


class RecordFormat(NamedTuple):
    """One kind of records beside images."""

    file_name: str
    subject: str
    """The record, as the beginning of an error."""
    version: int
    """Of all records that can be read."""

    def encode(self, fields: Mapping[str, Any]) -> str:
        """Encode for `read`. Names of files that are not valid text are preserved."""
        return json.dumps({"version": self.version, **fields})

    def read(self, images: str, decode: Callable[[dict[str, Any]], Decoded]) -> Decoded | None:
        """Read the record beside these images; None if there is none.

        Args:
            images: folder of the images.
            decode: the record's fields; it raises KeyError, TypeError or ValueError if they are not as expected.

        Raises:
            OSError: the record cannot be read now.
            ValueError: the record is unreadable, or of another version.
        """
        try:
            with open(f"{images}/{self.file_name}", encoding="utf-8") as file:
                content = json.load(file)
            if (version := content["version"]) == self.version:
                return decode(content)
            reason = f"is of version {excerpt(version)}, not {self.version}"
        except FileNotFoundError:
            return None
        except RecursionError:
            reason = "is unreadable: it is nested too deep"
        except (KeyError, TypeError, ValueError) as error:
            reason = f"is unreadable: {error!r:.{_MOST_EVIDENCE}}"
        raise ValueError(f"{self.subject} {reason}")


def excerpt(value: Any) -> str:
    """Return a short text of a value of any size and depth."""
    return reprlib.repr(value)


def require_list(value: Any, length: int | None = None) -> list[Any]:
    """Return a list, of this length unless it is None.

    Raises:
        TypeError: it is another value.
    """
    if type(value) is not list or (length is not None and len(value) != length):
        raise TypeError(f"{excerpt(value)} is no list" + ("" if length is None else f" of {length}"))
    return value


def require_text(value: Any) -> str:
    """Return a text.

    Raises:
        TypeError: it is another value.
    """
    if type(value) is not str:
        raise TypeError(f"{excerpt(value)} is no text")
    return value


def require_integer(value: Any, least: int | None = None) -> int:
    """Return an integer, at least this one unless it is None; true and false are none.

    Raises:
        TypeError: it is another value.
    """
    if type(value) is not int or (least is not None and value < least):
        raise TypeError(f"{excerpt(value)} is no integer" + ("" if least is None else f" of {least} or more"))
    return value


def require_true_or_false(value: Any) -> bool:
    """Return true or false.

    Raises:
        TypeError: it is another value.
    """
    if type(value) is not bool:
        raise TypeError(f"{excerpt(value)} is neither true nor false")
    return value
