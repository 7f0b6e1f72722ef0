"""Whether the doctor sees webhooks that the API server cannot call."""

from __future__ import annotations

import pytest

from cedana_sched.cli.doctor.cluster import webhooks
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster, ours

PATH = "/d3adb33f/mutate/pods"


def configuration(*, bundle: str = "LS0t", path: str | None = PATH) -> Object:
    service = {"name": f"{RELEASE}-webhooks", "namespace": NAMESPACE, **({"path": path} if path else {})}
    lost = {"name": "pods.sched.cedana.ai", "clientConfig": {"service": service, "caBundle": bundle}}
    well = {"name": "jobs.sched.cedana.ai", "clientConfig": {"service": {**service, "path": PATH}, "caBundle": "LS0t"}}
    return {"metadata": {"name": RELEASE, "labels": ours("webhooks")}, "webhooks": [lost, well]}


def endpoints(*ready: bool | None, service: str = f"{RELEASE}-webhooks") -> Object:
    metadata = {"name": "x", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service}}
    listed = [
        {"addresses": [f"10.0.0.{number}"], "conditions": {} if one is None else {"ready": one}}
        for number, one in enumerate(ready)
    ]
    return {"metadata": metadata, "endpoints": listed}


async def test_registered_webhooks_are_named_without_their_paths() -> None:
    cluster = Cluster().put(MUTATING_WEBHOOKS, configuration()).put(VALIDATING_WEBHOOKS, configuration())
    names = "jobs.sched.cedana.ai, pods.sched.cedana.ai"
    assert await cluster.findings(webhooks.check_mutating_webhooks) == [f"ok MutatingWebhookConfiguration: {names}"]
    assert await cluster.findings(webhooks.check_validating_webhooks) == [f"ok ValidatingWebhookConfiguration: {names}"]


async def test_missing_configurations_are_said() -> None:
    assert await Cluster().findings(webhooks.check_mutating_webhooks) == [
        "fail no MutatingWebhookConfiguration called cedana-sched has webhooks"
    ]
    (finding,) = await Cluster().findings(webhooks.check_validating_webhooks)
    assert finding.startswith("warn no ValidatingWebhookConfiguration")


async def test_a_webhook_without_a_bundle_or_a_path_is_named() -> None:
    cluster = Cluster().put(MUTATING_WEBHOOKS, configuration(bundle="", path=None))
    assert await cluster.findings(webhooks.check_mutating_webhooks) == [
        "fail MutatingWebhookConfiguration: no caBundle, so the API server trusts none of pods.sched.cedana.ai",
        "fail MutatingWebhookConfiguration: no path leads to pods.sched.cedana.ai",
    ]


@pytest.mark.parametrize(
    ("ready", "says"),
    [
        ((True, None), "ok 2 endpoints of Service cedana-sched-webhooks are ready"),
        ((True, False), "warn one endpoint of Service cedana-sched-webhooks is ready"),
        ((False, False), "fail no endpoint of Service cedana-sched-webhooks is ready"),
        ((), "fail no endpoint of Service cedana-sched-webhooks is ready"),
    ],
)
async def test_only_endpoints_that_are_ready_count(ready: tuple[bool | None, ...], says: str) -> None:
    cluster = Cluster().put(webhooks.ENDPOINT_SLICES, endpoints(*ready), endpoints(True, True, service="other"))
    (finding,) = await cluster.findings(webhooks.check_ready_endpoints)
    assert finding.startswith(says)
