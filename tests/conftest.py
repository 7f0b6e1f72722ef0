"""What all tests have in common."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from tests.pauses import shorten_pauses

settings.register_profile(  # a busy machine is no defect
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
