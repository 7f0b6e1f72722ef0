"""Restored processes have no higher limits than their new container, and are not killed after it for memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.cluster.node.pods import Change
from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

WITNESS = """
import resource, time
while True:
    print(*resource.getrlimit(resource.RLIMIT_NOFILE), open("/proc/self/oom_score_adj").read().strip())
    time.sleep(0.02)
"""


def limited(soft: int, hard: int, score: int) -> Change:
    def change(spec: dict[str, Any]) -> None:
        spec["process"]["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": soft, "hard": hard}]
        spec["process"]["oomScoreAdj"] = score

    return change


@pytest.mark.parametrize(
    ("had", "may", "has"),
    [
        pytest.param((2048, 4096, 100), (512, 1024, 500), "1024 1024 500", id="less"),
        pytest.param((512, 4096, 100), (512, 1024, 100), "512 1024 100", id="a lower hard limit"),
        pytest.param((512, 1024, 500), (2048, 4096, 100), "512 1024 500", id="more"),
    ],
)
def test_what_is_more_than_the_new_container_allows_is_lowered(
    site: Site, had: tuple[int, int, int], may: tuple[int, int, int], has: str
) -> None:
    first = site.node.pod("pod-1")
    first.run("main", WITNESS, change=limited(*had)).await_lines(1)
    images = site.take(first)
    site.template = limited(*may)
    second = site.replacement("pod-2", "main")
    assert site.bring_back(second, images, "main") is None
    main = second.containers["main"]
    main.await_lines(1)
    assert main.lines[-1] == has
