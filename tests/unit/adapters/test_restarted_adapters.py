"""An adapter that failed is run again, and subscribes to nothing a second time: handlers would pile up."""

from __future__ import annotations

import pytest

from cedana_sched.adapter.cluster_contract import ClusterAccess, Watching
from cedana_sched.adapter.conformance.cluster_stage import ClusterStage
from cedana_sched.adapter.conformance.stage import running_beside, yield_to_loop
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.events import EventRecorder
from cedana_sched.kube.resources import PODS
from cedana_sched.kube.watching import Informer, Watch
from tests.unit.adapters.kubernetes.kubernetes_stage import KubernetesStage
from tests.unit.adapters.kueue.kueue_stage import KueueStage
from tests.unit.adapters.volcano.volcano_stage import VolcanoStage


@pytest.mark.parametrize("stage_class", [KubernetesStage, KueueStage, VolcanoStage])
async def test_subscriptions_are_as_before(stage_class: type[ClusterStage]) -> None:
    stage = stage_class()
    pods = Informer(Watch(stage.api, PODS, Pod))
    events = EventRecorder(stage.api, "test")
    adapter = stage.adapter_class.connect(
        ClusterAccess(stage.api, events, pods, stage, stage, "cedana-sched", stage, stage.settings, stage.served)
    )
    assert isinstance(adapter, Watching)
    subscriptions: list[list[int]] = []
    async with running_beside(pods.run()):
        for _ in range(3):
            async with running_beside(adapter.run()):
                await yield_to_loop()
                assert all(one.synced.is_set() for one in adapter.informers)
                subscriptions.append([len(one._sinks) for one in (pods, *adapter.informers)])
    assert subscriptions == [subscriptions[0]] * 3
