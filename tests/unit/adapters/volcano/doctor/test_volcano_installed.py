"""What the doctor looks at in a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import (
    CHECKPOINT_POLICIES,
    CONFIG_MAPS,
    MUTATING_WEBHOOKS,
    SERVICES,
    Resource,
)
from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched.model.objects import names
from cedana_sched_volcano.doctor.examine import CONFIG_MAP
from cedana_sched_volcano.doctor.installation_reader import examine_cluster
from cedana_sched_volcano.objects import QUEUES
from tests.unit.adapters.volcano.doctor.test_volcano_doctor import ONE_TIER, URL, bad

QUEUE = {"metadata": {"name": "ml"}, "spec": {"weight": 1, "reclaimable": True}, "status": {"state": "Open"}}
SERVICE = {
    "metadata": {
        "name": "cedana-sched-volcano-extender",
        "namespace": "cedana-system",
        "labels": {"app.kubernetes.io/component": "volcano-extender"},
    },
    "spec": {
        "clusterIP": "10.96.0.7",
        "ports": [{"name": "extender", "port": 8713}, {"name": "operations", "port": 1}],
    },
}

WEBHOOKS = ("pods.sched.cedana.ai", "statuses.sched.cedana.ai")


class Cluster:
    """Lists what is there, as far as the selectors allow."""

    def __init__(self, scheduler: str = ONE_TIER, *, extender: bool = True, webhooks: Sequence[str] = WEBHOOKS) -> None:
        self.asked: list[tuple[Resource, Mapping[str, str]]] = []
        self._there: dict[Resource, list[Any]] = {
            QUEUES: [QUEUE],
            CONFIG_MAPS: [{"metadata": {"name": CONFIG_MAP}, "data": {"volcano-scheduler.conf": scheduler}}],
            SERVICES: [SERVICE] if extender else [],
            MUTATING_WEBHOOKS: [_webhooks(webhooks)],
        }

    def with_queue(self, policies: tuple[str, ...] | None = (), **annotations: str) -> Cluster:
        written = {names.PROTECT if key == "protect" else names.POLICY: text for key, text in annotations.items()}
        self._there[QUEUES] = [{**QUEUE, "metadata": {"name": "bio", "annotations": written}}]
        if policies is not None:
            self._there[CHECKPOINT_POLICIES] = [{"metadata": {"name": name}} for name in policies]
        return self

    def without(self, resource: Resource) -> Cluster:
        del self._there[resource]
        return self

    async def list_all(
        self, resource: Resource, namespace: str | None = None, query: Mapping[str, str] | None = None, *, into: Any
    ) -> tuple[tuple[Any, ...], str]:
        self.asked.append((resource, query or {}))
        if resource not in self._there:
            raise AbsentError(f"there is no {resource.kind}", status=404)
        return tuple(msgspec.convert(body, into) for body in self._there[resource]), "1"

    async def findings(self) -> list[Finding]:
        return await examine_cluster(cast("Api", self))


def _webhooks(webhooks: Sequence[str]) -> dict[str, Any]:
    return {"metadata": {"name": "cedana-sched"}, "webhooks": [{"name": one, "clientConfig": {}} for one in webhooks]}


async def test_what_is_set_up_well_needs_nothing() -> None:
    cluster = Cluster(ONE_TIER.replace("cedana-system:8713", "cedana-system.svc.cluster.local:8713"))
    findings = await cluster.findings()
    assert bad(findings) == []
    says = "evictions are held by the extender (preempt and reclaim), refused writes of pods/status, preStop"
    assert findings[-1].message == says
    for resource, query in cluster.asked:
        assert query or resource is QUEUES, "a person is not asked for more than is looked at"


async def test_an_extender_elsewhere_is_not_ours() -> None:
    elsewhere = URL.replace("cedana-system", "elsewhere")
    assert bad(await Cluster(ONE_TIER.replace(URL, elsewhere)).findings()) == [
        f"warn extender.urlPrefix is at {elsewhere}"
    ]
    assert bad(await Cluster(extender=False).findings()) == []


async def test_webhooks_that_are_not_registered_are_missed() -> None:
    findings = await Cluster(ONE_TIER.replace("extender.", "x."), webhooks=()).findings()
    assert any("nothing holds evictions" in said for said in bad(findings))


async def test_where_volcano_is_not_there_is_nothing_to_say() -> None:
    (finding,) = await Cluster().without(QUEUES).findings()
    assert finding.level is Level.OK


async def test_a_configuration_that_is_not_found_is_said() -> None:
    cluster = Cluster()
    cluster._there[CONFIG_MAPS] = []
    (finding,) = await cluster.findings()
    assert finding.level is Level.WARN


async def test_a_queue_that_says_something_else_than_true_protects_nobody() -> None:
    assert bad(await Cluster().with_queue(protect="yes").findings()) == [
        "warn queue bio protects no pod: sched.cedana.ai/protect is 'yes'"
    ]


async def test_a_queue_whose_policy_is_not_there_protects_nobody() -> None:
    assert bad(await Cluster().with_queue(("fast",), protect="true", policy="fats").findings()) == [
        "fail pods of queue bio are not protected: sched.cedana.ai/policy is 'fats', which is no CheckpointPolicy"
    ]


async def test_what_a_queue_says_rightly_is_no_finding() -> None:
    assert bad(await Cluster().with_queue(("fast",), protect="true", policy="fast").findings()) == []
    assert bad(await Cluster().with_queue(None, protect="true", policy="unknown here").findings()) == []
    assert bad(await Cluster().with_queue(protect="false", policy="gone").findings()) == []
    assert bad(await Cluster().with_queue().findings()) == []
