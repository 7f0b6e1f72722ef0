"""Tests on a real cluster: see `tests/cluster`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cluster.fixtures.session import (
    api,
    audit,
    cluster,
    evidence,
    keep_evidence,
    kind_config,
    kueue,
    kwok_installed,
    namespace,
    toolbox,
    usable_nodes,
)
from tests.cluster.kind_config.reading import read

__all__ = ["api", "audit", "cluster", "evidence", "kueue", "kwok_installed", "namespace", "toolbox"]

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All tests share one loop, as they share the cluster; those that the cluster is too small for are left out."""
    usable = usable_nodes(read(kind_config()))
    left_out = []
    for item in items:
        if not item.path.is_relative_to(_HERE):
            continue
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        needed = item.get_closest_marker("nodes")
        if needed is not None and needed.args[0] > usable:
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    keep_evidence(item, report)
    return report
