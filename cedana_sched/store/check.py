"""`store check`: tries everything that a snapshot requires of the store, before one is needed."""

from __future__ import annotations

import os
import time
import uuid

import msgspec

from cedana_sched.model.errors import IntegrityError
from cedana_sched.store.backend import Backend
from cedana_sched.store.capabilities import probe_capabilities

SAMPLE_BYTES = 32 << 20
_BLOCK_BYTES = 1 << 20


class StoreReport(msgspec.Struct, frozen=True):
    """A store's capabilities, and the throughput of one incompressible stream in each direction."""

    place: str
    conditional_create: bool
    commit_protocol: str
    ranges: bool
    write_bytes_per_second: float
    read_bytes_per_second: float
    round_trip_seconds: float


def check_store(backend: Backend) -> StoreReport:
    """Write, read and delete a sample of 32 MiB, like a pack.

    Raises:
        StoreDeniedError: an admin must act.
        StoreUnavailableError: the store is unreachable, or full.
        IntegrityError: the store returned other bytes than were written.
    """
    capabilities = probe_capabilities(backend)
    key = f"{backend.trials_folder}/{uuid.uuid4().hex}-sample"
    block = os.urandom(_BLOCK_BYTES)
    try:
        begun = time.monotonic()
        sink = backend.open_sink(key)
        try:
            for _ in range(SAMPLE_BYTES // _BLOCK_BYTES):
                sink.write(block)
            sink.finish()
        except BaseException:
            sink.abort()
            raise
        written = time.monotonic()
        data = backend.get(key, at_most=SAMPLE_BYTES)
        read = time.monotonic()
        if data != block * (SAMPLE_BYTES // _BLOCK_BYTES):
            remedy = "do not use this store before its fault is found"
            raise IntegrityError(f"{backend.description} gave back other bytes than it was given", remedy=remedy)
        backend.stat(key)
        answered = time.monotonic()
    finally:
        backend.delete([key])
    conditional = capabilities.conditional_create
    return StoreReport(
        place=backend.description,
        conditional_create=conditional,
        commit_protocol="conditional create" if conditional else "claim, then write, then look again",
        ranges=capabilities.ranges,
        write_bytes_per_second=SAMPLE_BYTES / (written - begun),
        read_bytes_per_second=SAMPLE_BYTES / (read - written),
        round_trip_seconds=answered - read,
    )
