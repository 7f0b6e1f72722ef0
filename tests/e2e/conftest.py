"""Tests on a real cluster: see `tests/cluster`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster import settings
from tests.cluster.addons.charts import TOOL
from tests.cluster.api.client import Api
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.fixtures.session import (
    api,
    armada,
    audit,
    cluster,
    evidence,
    is_for,
    jobset,
    keep_evidence,
    kueue,
    kwok_installed,
    lws,
    mpi_operator,
    namespace,
    other_cluster,
    steps,
    toolbox,
    training_operator,
    volcano,
)
from tests.cluster.kind_config.reading import read
from tests.cluster.steps import Steps
from tests.e2e.product import installation

__all__ = [
    "api",
    "armada",
    "audit",
    "cluster",
    "evidence",
    "jobset",
    "kueue",
    "kwok_installed",
    "lws",
    "mpi_operator",
    "namespace",
    "other_cluster",
    "steps",
    "toolbox",
    "training_operator",
    "volcano",
]

_HERE = Path(__file__).parent
_INSTALLATIONS = (
    "installed", "product", "installed_with_kueue", "fair_sharing", "installed_with_volcano", "configured",
    "installed_with_extender", "installed_with_armada", "installed_with_scoped_credentials",
)  # fmt: skip
"""Fixtures that install the product, or what is beside it, each in its own way."""


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def helm(steps: Steps) -> Binaries:
    """Helm."""
    return await ensure(TOOL, steps=steps)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kinds(api: Api, helm: Binaries) -> None:
    """Our kinds, whether the product is installed or not."""
    await installation.define_kinds(api, helm)


def _is_beyond_the_brief(item: pytest.Item) -> bool:
    brief = item.get_closest_marker("brief")
    return brief is not None and item.name not in brief.args


def _lateness(item: pytest.Item) -> tuple[bool, bool, int]:
    fixtures = getattr(item, "fixturenames", ())
    installation = max((number for number, name in enumerate(_INSTALLATIONS) if name in fixtures), default=-1)
    return "other_cluster" in fixtures, item.path.is_relative_to(_HERE / "product"), installation


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks itself
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests share one loop, as they share the cluster; those that the cluster's shape is not for are left out.

    Those of the installed product come late: it stays until the end, and the others look at the parts without it. Those
    that want it installed in the same way follow each other, for each installation takes half a minute. Those with a
    second cluster come last: Armada counts on it for half a minute after it is gone, and would give it jobs.
    """
    shape = read(settings.kind_config())
    ours = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in ours:
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if _is_beyond_the_brief(item):
            item.add_marker(pytest.mark.exhaustive)
    items.sort(key=_lateness)
    left_out = [item for item in ours if not is_for(item, shape)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    keep_evidence(item, report)
    return report
