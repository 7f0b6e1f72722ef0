"""Compression: what comes out is what went in, and the effort follows the store."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import IntegrityError
from cedana_sched.model.policy import Compression
from cedana_sched.store.compression import LZ4, RAW, ZSTD, Compressor, decompress, looks_random

TEXT = b"step 100 energy -1234.5 " * 4000


@given(data=st.binary(min_size=1, max_size=5000), repeat=st.integers(1, 20), how=st.sampled_from(Compression))
@settings(deadline=None)
def test_chunks_come_back(data: bytes, repeat: int, how: Compression) -> None:
    chunk = data * repeat
    codec, payload = Compressor(how).compress(memoryview(chunk))

    assert len(payload) <= len(chunk)
    assert bytes(decompress(codec, payload, len(chunk))) == chunk


@pytest.mark.parametrize(
    ("how", "codec"),
    [(Compression.NONE, RAW), (Compression.LZ4, LZ4), (Compression.ZSTD, ZSTD), (Compression.AUTO, LZ4)],
)
def test_the_named_codec_is_used(how: Compression, codec: int) -> None:
    assert Compressor(how).compress(memoryview(TEXT))[0] == codec


@pytest.mark.parametrize("how", list(Compression))
def test_what_cannot_be_compressed_is_stored_as_it_is(how: Compression) -> None:
    noise = random.Random(1).randbytes(1 << 20)

    assert Compressor(how).compress(memoryview(noise)) == (RAW, noise)


@pytest.mark.parametrize("period", [1, 2, 3, 4, 8, 16, 32])
def test_memory_that_alternates_between_noise_and_text_is_compressed(period: int) -> None:
    source = random.Random(1)
    pages = [source.randbytes(4096) if n // period % 2 else TEXT[:4096] for n in range(256)]

    assert not looks_random(memoryview(b"".join(pages)))


def test_a_slow_store_makes_it_compress_more_and_a_fast_one_less() -> None:
    compressor = Compressor(Compression.AUTO)
    efforts = [compressor.next_effort]
    for working, waiting in ((0.001, 0.010), (0.001, 0.010), (0.010, 0.003), (0.010, 0.0), (0.010, 0.0), (0.010, 0.0)):
        for _ in range(16):
            compressor.record_chunk_times(working, waiting)
        efforts.append(compressor.next_effort)

    assert efforts == [(LZ4, 0), (ZSTD, 1), (ZSTD, 3), (ZSTD, 3), (ZSTD, 1), (LZ4, 0), (RAW, 0)]


def test_a_named_codec_does_not_follow_the_store() -> None:
    compressor = Compressor(Compression.LZ4)
    for _ in range(100):
        compressor.record_chunk_times(0.0, 1.0)

    assert compressor.next_effort == (LZ4, 0)


@given(codec=st.sampled_from([RAW, LZ4, ZSTD, 9]), payload=st.binary(max_size=200), size=st.integers(300, 1 << 20))
@settings(deadline=None)
def test_damage_is_an_integrity_error(codec: int, payload: bytes, size: int) -> None:
    with pytest.raises(IntegrityError):
        decompress(codec, payload, size)
