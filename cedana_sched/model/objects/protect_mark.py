"""Mark by which an admin protects all pods of a namespace, by a label, or of a scheduler's queue, by an annotation.

The API server accepts every value; any other than those two protects no pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names

_YES: Final = "true"
_NO: Final = "false"
_LONGEST: Final = 64
"""Characters of the value that an error shows."""


def is_protecting(marks: Mapping[str, str]) -> bool:
    """Return whether the labels or annotations protect all pods of their object."""
    return marks.get(names.PROTECT) == _YES


def validate_protect_mark(field: str, marks: Mapping[str, str]) -> None:
    """Refuse a mark that does not count as it is written.

    `field`: of the object, `metadata.labels` or `metadata.annotations`.

    Raises:
        UsageError: it is neither of the two values.
    """
    value = marks.get(names.PROTECT)
    if value is None or value in {_YES, _NO}:
        return
    raise UsageError(
        f"{field}[{names.PROTECT}]",
        value[:_LONGEST],
        "protects no pod",
        remedy="write 'true', or 'false', or remove it",
    )
