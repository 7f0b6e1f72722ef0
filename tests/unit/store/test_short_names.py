"""Short strings take many times their own size of memory: a file that is full of them is refused at its first one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import zstandard
from blake3 import blake3
from structlog.testing import capture_logs

from cedana_sched.model.identity import Identity
from cedana_sched.store import layout
from cedana_sched.store.catalogue import Catalogue
from cedana_sched.store.generation_names import parse_generations
from cedana_sched.store.intents import Intent, read_intents
from cedana_sched.store.posix import PosixBackend
from cedana_sched.store.references import read_references

NAMESPACE = "team-a"
SHORT = tuple(f"{number % 1000}" for number in range(200_000))


def test_intents_of_short_names_are_not_decoded(tmp_path: Path) -> None:
    backend = PosixBackend(tmp_path)
    laid = msgspec.msgpack.encode(Intent("a" * 32, Identity(NAMESPACE, "job"), SHORT))
    backend.put(f"{layout.intents_folder(NAMESPACE)}/{'a' * 32}", laid)
    with capture_logs() as logs:
        assert read_intents(backend, NAMESPACE, now=0.0).announced_packs == frozenset()
    assert [one["event"] for one in logs] == ["intent_unreadable"]


def test_references_of_short_names_are_not_decoded(tmp_path: Path) -> None:
    backend = PosixBackend(tmp_path)
    for rows in ([["k" * 64, 1, 0.0, [SHORT, None]]], [["k", 1, 0.0, [[], None]]] * 50_000):
        body = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(rows))
        backend.put(layout.references_key(NAMESPACE), blake3(body).digest() + body)
        with capture_logs() as logs:
            assert read_references(backend, Catalogue(backend), NAMESPACE, parse_generations(())).packs == set()
        assert [one["event"] for one in logs] == ["references_read_anew"]
