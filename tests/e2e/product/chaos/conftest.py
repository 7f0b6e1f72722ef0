"""The store of a chaos run stands outside the cluster, so that its faults are its own and no node's."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.cluster import Cluster
from tests.cluster.steps import Steps
from tests.e2e.product.chaos import outside
from tests.e2e.product.chaos.outside import Outside
from tests.e2e.product.s3_server import S3Server


@dataclass(frozen=True)
class Run:
    """What `make chaos` was asked for."""

    seed: int
    minutes: float

    @property
    def evidence(self) -> Path:
        """Where what it is judged from is kept."""
        return Path("build/chaos") / f"seed-{self.seed}"

    @property
    def verdict(self) -> Path:
        """Where what was found is kept; absent where the run was broken off."""
        return self.evidence.with_suffix(".json")


def minutes() -> float:
    """For how long faults go on."""
    return float(os.environ.get("MINUTES") or 2)


@pytest.fixture(scope="session")
def run() -> Run:
    """SEED and MINUTES of the environment."""
    return Run(int(os.environ.get("SEED") or 1), minutes())


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def beside(
    run: Run, cluster: Cluster, steps: Steps, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Outside]:
    """What stands beside the cluster. The words of the pods are kept, however the run ends."""
    words = run.evidence.absolute() / "words"
    words.parent.mkdir(parents=True, exist_ok=True)
    run.verdict.unlink(missing_ok=True)  # of an earlier run, which this one may break off without
    async with outside.running(cluster, tmp_path_factory.mktemp("outside"), words, steps) as found:
        yield found


@pytest.fixture(scope="session")
def s3(beside: Outside) -> S3Server:
    """The store that the product is installed with."""
    return beside.s3
