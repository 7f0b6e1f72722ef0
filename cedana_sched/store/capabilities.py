"""Detection of a store's capabilities by trial: some S3 servers return 200 to a conditional create and overwrite.

Probed once per place and process: after an upgrade of the server, a restart is required.
"""

from __future__ import annotations

import threading
import uuid

from cedana_sched.model.errors import StoreError, StoreUnavailableError
from cedana_sched.store.backend import Backend, Capabilities

_MOST_BYTES = 16
"""Size of a trial object."""

_lock = threading.Lock()
_known: dict[str, Capabilities] = {}


def capabilities_of(backend: Backend) -> Capabilities:
    """Return the capabilities of the place; probed on the first call for it.

    Raises:
        StoreDeniedError: the place is not writable.
        StoreUnavailableError: the place is unreachable.
    """
    with _lock:
        known = _known.get(backend.description)
    if known is None:
        known = probe_capabilities(backend)
        with _lock:
            _known[backend.description] = known
    return known


def probe_capabilities(backend: Backend) -> Capabilities:
    """Write, write again, read a range, delete."""
    key = f"{backend.trials_folder}/{uuid.uuid4().hex}"
    backend.put(key, b"first")
    try:
        return Capabilities(_creates_conditionally(backend, key), _reads_ranges(backend, key))
    finally:
        backend.delete([key])


def _creates_conditionally(backend: Backend, key: str) -> bool:
    """Check both halves: refused if the object exists, and granted if it does not."""
    fresh = f"{key}-fresh"
    try:
        if backend.put_if_absent(key, b"second") or bytes(backend.get(key, at_most=_MOST_BYTES)) != b"first":
            return False
        return backend.put_if_absent(fresh, b"first")
    except StoreUnavailableError:
        raise
    except StoreError:
        return False
    finally:
        backend.delete([fresh])


def _reads_ranges(backend: Backend, key: str) -> bool:
    backend.put(key, b"first")
    try:
        return bytes(backend.get_range(key, 1, 3)) == b"irs"
    except StoreUnavailableError:
        raise
    except StoreError:
        return False
