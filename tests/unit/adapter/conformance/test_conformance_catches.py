"""Every test of the conformance suite can fail: for each there is an adapter that it refuses."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from cedana_sched.adapter import registry
from cedana_sched.adapter.conformance import AdapterConformance, NonConformanceError, Stage
from tests.unit.adapter.conformance import broken_releasing, broken_telling
from tests.unit.adapter.conformance.starting_toy import StartingToyStage, toy

BROKEN = [one for module in (broken_telling, broken_releasing) for one in vars(module).values()]
CAUGHT = [(name, broken) for broken in BROKEN for name in getattr(broken, "caught_by", ())]


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("toy", "toy_adapter:ToyAdapter", registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))


@pytest.mark.parametrize(("name", "broken"), CAUGHT, ids=[f"{broken.__name__}-{name}" for name, broken in CAUGHT])
async def test_a_broken_adapter_is_caught(name: str, broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for patience_seconds in (0.05, 5.0):  # a busy machine may take longer than that for what comes before
        stage = broken.stage()
        monkeypatch.setattr(type(stage), "adapter_class", broken)
        stage.patience_seconds = patience_seconds
        with pytest.raises(NonConformanceError) as caught:
            await getattr(AdapterConformance(), f"test_{name}")(stage)
        if is_caught := re.search(broken.says, str(caught.value)) is not None:
            break
    assert is_caught, str(caught.value)


def test_every_test_catches_somebody() -> None:
    tests = {name.removeprefix("test_") for name in dir(AdapterConformance) if name.startswith("test_")}
    assert tests == {name for name, _ in CAUGHT}


class TestStartingToy(AdapterConformance):
    """The adapter that the broken ones are made from is not broken."""

    @pytest.fixture
    def stage(self, monkeypatch: pytest.MonkeyPatch) -> Stage:
        monkeypatch.setattr(toy["toy_adapter"], "ToyAdapter", StartingToyStage.adapter_class)
        made: Stage = StartingToyStage()
        return made
