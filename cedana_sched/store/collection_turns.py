"""Turns of garbage collection: of many nodes, one at a time collects a namespace, and not too often.

A collection lists the whole namespace, so a thousand nodes that each save one workload must not start a thousand. The
object `collector` has the collecting node, and the begin and end of the last run, by the store's clock. Two nodes may
still start at once, which is safe (`garbage.py`), only twice the work; a node that dies within a run loses its turn
after a timeout.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec
import structlog

from cedana_sched.model.errors import CedanaSchedError, IntegrityError
from cedana_sched.store import layout
from cedana_sched.store.backend import Backend, MissingObjectError
from cedana_sched.store.decoding import UNREADABLE
from cedana_sched.store.garbage import GarbageReport

RUN_SECONDS = 1800.0
"""A longer run counts as dead."""

_MOST_BYTES = 4096

_log = structlog.get_logger(__name__)


class CompletedRun(msgspec.Struct, frozen=True):
    """A completed run, of any node: seconds since its begin, and since its end."""

    began_ago: float
    ended_ago: float


class TurnResult(msgspec.Struct, frozen=True):
    """Result of a turn. `report` is None if another node collects now, or did recently."""

    report: GarbageReport | None
    last: CompletedRun | None


class _TurnState(msgspec.Struct, frozen=True):
    collector: str
    running_since: float | None
    began: float | None = None
    ended: float | None = None


_decoder = msgspec.msgpack.Decoder(_TurnState)


def collect_if_due(
    backend: Backend, namespace: str, every_seconds: float, collect: Callable[[], GarbageReport]
) -> TurnResult:
    """Collect, unless another node does, or the last run ended less than `every_seconds` ago.

    Raises:
        StoreError: the store failed; another turn may be taken at once.
    """
    key, clock = layout.collector_key(namespace), backend.restricted_to_folder(layout.namespace_folder(namespace))
    now = clock.store_time()
    state = _read(backend, key)
    if state is not None and _is_not_due(state, now, every_seconds):
        return TurnResult(None, _completed_run_of(state, now))
    before = state or _TurnState("", None)
    mine = msgspec.structs.replace(before, collector=uuid.uuid4().hex, running_since=now)
    _write(backend, key, mine)
    state = _read(backend, key)
    if state is None or state.collector != mine.collector:  # another node has started at the same moment, and proceeds
        return TurnResult(None, _completed_run_of(before, now))
    try:
        report = collect()
    except BaseException:
        _restore_state(backend, key, before)
        raise
    ended = clock.store_time()
    done = _TurnState(mine.collector, None, now, ended)
    if report.is_empty:
        backend.delete([key])
    else:
        _write(backend, key, done)
    return TurnResult(report, _completed_run_of(done, ended))


def _is_not_due(state: _TurnState, now: float, every_seconds: float) -> bool:
    """Return whether a run is not due; a time far in the future, which no clock has written, is ignored."""
    runs = state.running_since is not None and abs(now - state.running_since) < RUN_SECONDS
    return runs or (state.ended is not None and abs(now - state.ended) < every_seconds)


def _completed_run_of(state: _TurnState, now: float) -> CompletedRun | None:
    if state.began is None or state.ended is None:
        return None
    return CompletedRun(now - state.began, now - state.ended)


def _read(backend: Backend, key: str) -> _TurnState | None:
    try:
        return _decoder.decode(backend.get(key, at_most=_MOST_BYTES))
    except MissingObjectError:
        return None
    except (IntegrityError, *UNREADABLE) as error:
        _log.warning("collector_unreadable", key=key, error=str(error))
        return None


def _write(backend: Backend, key: str, state: _TurnState) -> None:
    backend.put(key, msgspec.msgpack.encode(state))


def _restore_state(backend: Backend, key: str, before: _TurnState) -> None:
    try:
        _write(backend, key, before)
    except CedanaSchedError as error:  # it expires
        _log.info("collection_not_withdrawn", key=key, error=str(error))
