"""The adapter that docs/write-an-adapter.md writes keeps the contract."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from cedana_sched.adapter import registry
from cedana_sched.adapter.conformance import Stage
from tests.unit.adapter.conformance import toy_page

toy = toy_page.modules()


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("toy", "toy_adapter:ToyAdapter", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))


class TestToyOfThePage(toy["test_toy"].TestToy):  # type: ignore[misc]  # known at run time only
    @pytest.fixture
    def stage(self) -> Stage:
        made: Stage = toy["toy_stage"].ToyStage()
        return made
