"""A broken adapter is refused with a sentence; it is never skipped."""

from __future__ import annotations

import sys
import types
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from cedana_sched.adapter import registry
from cedana_sched.adapter.contract import Report
from cedana_sched.adapter.registry import GROUP, AdapterLoadError
from cedana_sched.local.adapter import EmbeddedAdapter
from cedana_sched.model.errors import NotFoundError
from cedana_sched.model.preemption import Release


class Toy:
    """As much of an adapter as the registry looks at."""

    name = "toy"

    async def reports(self) -> AsyncIterator[Report]:
        """Nothing ever happens."""
        never: tuple[Report, ...] = ()
        for report in never:
            yield report

    async def release(self, release: Release) -> None:
        """Nothing is held."""


class Mute:
    name = "mute"

    async def release(self, release: Release) -> None: ...


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Objects of a module `offers`, each an entry point of its own name."""
    module = types.ModuleType("offers")
    objects: dict[str, object] = {"toy": Toy, "mute": Mute, "number": 7, "renamed": Toy}
    for name, value in objects.items():
        setattr(module, name, value)
    monkeypatch.setitem(sys.modules, "offers", module)
    points = [EntryPoint(name, f"offers:{name}", GROUP) for name in objects]
    points += [EntryPoint("absent", "offers:absent", GROUP), EntryPoint("needy", "no_such_module:x", GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(points).select(group=group))
    return objects


def test_the_embedded_engines_adapter_is_installed_and_fulfils_the_contract() -> None:
    assert registry.load("embedded") is EmbeddedAdapter


@pytest.mark.usefixtures("offered")
def test_an_adapter_is_found_by_its_entry_point() -> None:
    loaded: object = registry.load("toy")
    assert loaded is Toy


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mute", "lacks reports"),
        ("number", "lacks name, reports, release"),
        ("renamed", "calls itself 'toy'"),
        ("absent", "names an object that does not exist"),
        ("needy", "cannot be imported"),
    ],
)
def test_a_broken_adapter_is_named_with_what_is_wrong(name: str, says: str) -> None:
    with pytest.raises(AdapterLoadError, match=says) as caught:
        registry.load(name)
    assert repr(name) in str(caught.value)
    assert caught.value.remedy


@pytest.mark.usefixtures("offered")
def test_an_adapter_that_nobody_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(NotFoundError, match="installed are: absent, mute, needy, number, renamed, toy"):
        registry.load("slurm")


def test_two_distributions_with_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("toy", "one:Toy", GROUP), EntryPoint("toy", "two:Toy", GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda group: points.select(group=group))
    with pytest.raises(AdapterLoadError, match="two adapters are called 'toy'"):
        registry.installed_adapters()
