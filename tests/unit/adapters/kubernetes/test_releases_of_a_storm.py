"""A release costs the same however many other pods there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cedana_sched.adapter.conformance.coordinator import Coordinator
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.resources import NODES
from cedana_sched.kube.watching import Informer
from cedana_sched.model.preemption import Release, Verdict
from tests.unit.adapters.kubernetes.kubernetes_stage import KubernetesStage


@pytest.mark.parametrize("signal_uid", ["pod~time", "pod=notice", "family"])
async def test_released_pods_are_found_without_a_look_at_all_others(
    signal_uid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = KubernetesStage()
    stage.api.put(NODES, {"metadata": {"name": "node-1"}, "spec": {}})
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            pods = await stage.start(members=3)
            release = Release(signal_uid.replace("pod", pods[0].uid), {pods[0].uid: Verdict.COMMITTED})
            await adapter.release(release)

            looked_at: list[Pod] = []
            every = Informer.__iter__

            def seen(informer: Informer[Any]) -> Iterator[Any]:
                looked_at.extend(one for one in every(informer) if isinstance(one, Pod))
                return every(informer)

            monkeypatch.setattr(Informer, "__iter__", seen)
            await adapter.release(release)
            assert looked_at == []
