"""The labels and annotations that are cached of an object: those that some component reads.

An object may have any number of labels and annotations, written by any client. So the definition of a key that is read
from `Metadata` registers the key here (`register_cached_key`); all other keys are dropped when an object is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cedana_sched.model.objects import names
from cedana_sched.model.pod_indexing import REVISION, SCHEMES, STATEFUL_NAME


def register_cached_key(key: str) -> str:
    """Register the key of a label or annotation to be cached from now on; returns the key."""
    _KEPT.add(key)
    return key


def only_cached_keys(texts: dict[str, str]) -> dict[str, str]:
    """Return the registered labels or annotations; the same dictionary if all are registered."""
    return texts if texts.keys() <= _KEPT else {key: texts[key] for key in _KEPT & texts.keys()}


def _replica_number_keys() -> Iterator[str]:
    yield from (STATEFUL_NAME, REVISION)
    for scheme in SCHEMES:
        yield from (scheme.pods, scheme.whole, *scheme.index, *(key for keys in scheme.role for key in keys))
        yield from (scheme.only or ())[:1]


_OURS: Final = frozenset(
    value
    for value in vars(names).values()
    if isinstance(value, str) and value.startswith(f"{names.GROUP}/") and value != names.NODE_GPUS  # for people alone
)
_KEPT: Final = {*_OURS, *filter(None, _replica_number_keys())}
