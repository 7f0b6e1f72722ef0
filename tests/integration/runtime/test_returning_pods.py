"""Pods come back through the runtime handler, the real runc and the real CRIU."""

from __future__ import annotations

import pytest

from tests.integration.runtime.conftest import Site

pytestmark = pytest.mark.criu

COUNTER = """
import pathlib, time
kept, image, shared = (open(f"{folder}/number", "a+") for folder in ("/data", "/srv", "/dev/shm"))
number = 0
while True:
    number += 1
    for file in (kept, image, shared):
        print(number, file=file, flush=True)
    print(number)
    time.sleep(0.02)
"""


def test_a_pod_continues_with_its_files(site: Site) -> None:
    first = site.node.pod("pod-1")
    first.run("main", COUNTER).await_lines(3)
    images = site.take(first)
    counted = first.containers["main"].lines

    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None

    again = second.containers["main"]
    again.await_lines(3)
    assert int(again.lines[0]) == int(counted[-1]) + 1
    assert "continuing from the snapshot" in site.said
    for kept in (second.volume / "number", again.upper / "srv/number", second.shared_memory / "number"):
        numbers = [int(line) for line in kept.read_text().split()]
        assert numbers == list(range(1, len(numbers) + 1)), kept
