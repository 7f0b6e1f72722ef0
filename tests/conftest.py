"""What all tests have in common."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.pauses import shorten_pauses

settings.register_profile(  # a busy machine is no defect
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names with an address: they differ in each process of pytest-xdist, which then runs nothing."""
    if changing := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"give these tests constant ids: {', '.join(changing[:5])}")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
