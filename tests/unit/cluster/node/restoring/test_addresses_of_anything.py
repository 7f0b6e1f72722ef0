"""Whatever addresses the images of a connection hold, it is one within the pod, or it is not."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.cluster.node.restoring.criu_images import _is_loopback

WORDS = st.lists(st.integers(0, 2**32 - 1) | st.just(0x0100007F) | st.integers(-1, 2**40), max_size=5)
HERE, AWAY = [0x0100007F], [0x0700000A]
"""127.0.0.1 and 10.0.0.7, as CRIU writes them."""


@given(st.sampled_from([socket.AF_INET, socket.AF_INET6, 0]), WORDS, WORDS)
def test_any_words(family: int, source: list[int], target: list[int]) -> None:
    assert _is_loopback({"family": family, "src_addr": source, "dst_addr": target}) in {True, False}


@pytest.mark.parametrize(("source", "target", "within"), [(HERE, HERE, True), (HERE, AWAY, False), (HERE, [], False)])
def test_both_ends_are_looked_at(source: list[int], target: list[int], within: bool) -> None:
    assert _is_loopback({"family": socket.AF_INET, "src_addr": source, "dst_addr": target}) is within
