"""What all tests have in common."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.pauses import shorten_pauses

settings.register_profile("without deadlines", deadline=None)  # a busy machine is no defect
settings.load_profile("without deadlines")


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
