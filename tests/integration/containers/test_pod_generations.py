"""Containers of a pod go into a store and continue in another pod."""

from __future__ import annotations

import pytest

from cedana_sched.snapshot import freezer
from tests.integration.containers.conftest import Laboratory

pytestmark = pytest.mark.criu

COUNTER = """
import time
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.02)
"""


def test_a_container_continues_in_another_pod(lab: Laboratory) -> None:
    first = lab.node.pod("pod-1")
    counter = first.run("main", COUNTER)
    counter.await_lines(3)
    running = lab.freeze(first)
    images = lab.stage(lab.dump(running))
    for cgroup in running.freezers:
        freezer.kill(cgroup)
    first.end()

    second = lab.node.pod("pod-2")
    again = second.container("main")
    again.make(["/bin/false"])
    again.restore(images / "main")

    again.await_lines(3)
    assert int(again.lines[0]) == int(counter.lines[-1]) + 1
