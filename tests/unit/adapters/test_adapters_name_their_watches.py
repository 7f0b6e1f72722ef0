"""Each adapter names everything that it watches, so that people see what the API server refuses."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess, ClusterAdapter, Watching
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched_kueue.adapter import KueueAdapter
from cedana_sched_volcano.adapter import VolcanoAdapter


@pytest.mark.parametrize("kind", [KueueAdapter, VolcanoAdapter])
async def test_all_mirrors_that_an_adapter_makes_are_named(
    kind: type[ClusterAdapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = cast("Any", None)
    pods: Informer[Pod] = Informer(Watch(nothing, PODS, Pod))
    made: list[Informer[Any]] = []
    make = Informer.__init__

    def noted(self: Informer[Any], *arguments: Any, **named: Any) -> None:
        made.append(self)
        make(self, *arguments, **named)

    monkeypatch.setattr(Informer, "__init__", noted)
    adapter = kind.connect(ClusterAccess(nothing, nothing, pods, nothing, nothing, "-", nothing))
    assert isinstance(adapter, Watching)
    assert made
    assert set(adapter.informers) == set(made)
