"""Which labels and annotations of an object are kept once it is read: those that somebody reads.

An object may have any number of them, and whoever writes objects writes these, too. So a key that is to be read from
`Metadata` is named here (`kept`), where it is defined; what nobody has named goes when the object is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cedana_sched.model.numbering import COMPLETION_INDEX, SCHEMES, STATEFUL_NAME, TASK
from cedana_sched.model.objects import names


def kept(key: str) -> str:
    """The key of a label or an annotation that is kept from now on."""
    _KEPT.add(key)
    return key


def only_kept(texts: dict[str, str]) -> dict[str, str]:
    """Those labels or annotations that somebody reads; the same dictionary where nobody passes over any."""
    return texts if texts.keys() <= _KEPT else {key: texts[key] for key in _KEPT & texts.keys()}


def _numbering() -> Iterator[str]:
    yield from (COMPLETION_INDEX, STATEFUL_NAME, TASK)
    for scheme in SCHEMES:
        yield from (scheme.pods, *scheme.index, *(key for keys in scheme.role for key in keys))
        yield from (scheme.only or ())[:1]


_OURS: Final = frozenset(
    value for value in vars(names).values() if isinstance(value, str) and value.startswith(f"{names.GROUP}/")
)
_KEPT: Final = {*_OURS, *filter(None, _numbering())}
