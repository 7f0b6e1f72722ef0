"""A pod that counts, and its snapshot."""

from __future__ import annotations

from pathlib import Path

from tests.integration.cluster.node.pods import Pod
from tests.integration.cluster.node.restoring.conftest import Site

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


def save_counting_pod(site: Site) -> tuple[Pod, Path]:
    """The pod, which has counted at least to 3, and its images as staged."""
    pod = site.node.pod("pod-1")
    pod.run("main", COUNTER).await_lines(3)
    return pod, site.take(pod)
