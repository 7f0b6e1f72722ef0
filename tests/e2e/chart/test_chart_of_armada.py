"""What the chart writes for Armada: what the adapter and the webhooks read, secrets, and what cannot be meant."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.cluster.coordinator.adapter_notes import PREFIX as NOTES
from cedana_sched.model.objects.names import GROUP
from cedana_sched_armada.executor_labels import JOB_LABEL, QUEUE_LABEL
from cedana_sched_armada.settings import ArmadaSettings, ProtectedQueues
from tests.cluster.binaries.build import Binaries
from tests.e2e.product.rendering import (
    ChartError,
    coordinator_of,
    hooks_of,
    lint,
    pods_of,
    render,
    rules_of,
    webhooks_of,
)

pytestmark = pytest.mark.any_shape

COORDINATOR = "cedana-sched-coordinator"


def values(**told: Any) -> dict[str, Any]:
    armada = {"enabled": True, "url": "armada.example:50051", "queues": ["bio", "R&D 1"], **told}
    return {"storage": {"s3": {"bucket": "lab"}}, "armada": armada}


async def test_armada_is_what_its_values_say(helm: Binaries) -> None:
    await lint(helm, values())
    objects = await render(helm, values())
    coordinator, webhooks = coordinator_of(objects), webhooks_of(objects)
    assert (coordinator.adapters, webhooks.adapters) == (("armada",), ("armada",))
    told = ArmadaSettings.read(coordinator.adapter_settings["armada"])
    said = ArmadaSettings(url="armada.example:50051", queues=frozenset({"bio", "R&D 1"}))
    assert told == said, "the chart's defaults are ours, and no queue is left out"
    assert ProtectedQueues.read(webhooks.adapter_settings["armada"]).queues == {"bio", "R&D 1"}
    assert webhooks.deletion_confirmation.labels == {JOB_LABEL}
    (hook,) = (hook for hook in hooks_of(objects) if hook["name"] == f"armada-pods.{GROUP}")
    assert hook["objectSelector"]["matchExpressions"] == [{"key": JOB_LABEL, "operator": "Exists"}]
    (condition,) = hook["matchConditions"]
    assert f"object.metadata.labels['{QUEUE_LABEL}'] in [\"bio\"," in condition["expression"]
    assert hooks_of(objects)[0] is hook, "the pod webhook sees what it has written"
    (rule,) = (rule for rule in rules_of(objects, COORDINATOR) if f"{NOTES}armada" in rule.get("resourceNames", ()))
    assert {"get", "update"} <= set(rule["verbs"])


async def test_where_jobs_of_armada_name_themselves_no_webhook_looks_at_its_queues(helm: Binaries) -> None:
    objects = await render(helm, values(queues=[]))
    told = ArmadaSettings.read(coordinator_of(objects).adapter_settings["armada"])
    assert told.opts_in("any")
    webhooks = webhooks_of(objects)
    assert webhooks.adapters == ()
    assert webhooks.deletion_confirmation.labels == {JOB_LABEL}
    assert f"armada-pods.{GROUP}" not in json.dumps(hooks_of(objects))


async def test_queues_that_are_looked_at_are_not_therefore_protected(helm: Binaries) -> None:
    objects = await render(helm, values(queues=[], onlyQueues=["bio"]))
    told = ArmadaSettings.read(coordinator_of(objects).adapter_settings["armada"])
    assert (told.opts_in("bio"), told.opts_in("ml")) == (True, False)
    assert f"armada-pods.{GROUP}" not in json.dumps(hooks_of(objects))


OIDC = {"providerUrl": "https://login.example", "clientId": "cedana", "scopes": ["armada"]}


@pytest.mark.parametrize(
    ("auth", "file"),
    [
        ({"method": "basic", "basic": {"username": "cedana"}}, "auth.basic.password_file"),
        ({"method": "token"}, "auth.token.file"),
        ({"method": "oidc", "oidc": OIDC}, "auth.oidc.client_secret_file"),
    ],
)
async def test_what_proves_who_we_are_to_armada_is_where_the_coordinator_looks(
    helm: Binaries, auth: dict[str, Any], file: str
) -> None:
    tls = {
        "enabled": True,
        "existingSecret": "lab-tls",
        "secretKeys": {"certificate": "tls.crt", "key": "tls.key"},
        "serverName": "armada",
    }
    auth = {**auth, "existingSecret": "lab-armada", "secretKey": "proof"}
    objects = await render(helm, values(auth=auth, tls=tls))
    told = ArmadaSettings.read(coordinator_of(objects).adapter_settings["armada"])
    assert told.tls is not None
    assert told.tls.server_name == "armada"
    proof = operator.attrgetter(file)(told)
    for name in (COORDINATOR, "cedana-sched-uninstall"):
        pod = dict(pods_of(objects))[name]
        volumes = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
        (container,) = pod["containers"]
        folders = {Path(mount["mountPath"]): volumes[mount["name"]] for mount in container["volumeMounts"]}
        assert (folders[proof.parent], proof.name) == ("lab-armada", "proof")
        files = (told.tls.ca, told.tls.certificate, told.tls.key)
        assert [(folders[file.parent], file.name) for file in files if file] == [
            ("lab-tls", "ca.crt"), ("lab-tls", "tls.crt"), ("lab-tls", "tls.key"),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"url": ""}, "needs armada.url"),
        ({"url": "https://armada.example:443"}, "/armada/url"),
        ({"holdSeconds": 300}, "/armada/holdSeconds"),
        ({"onlyQueues": ["bio"]}, "R&D 1 is not in armada.onlyQueues"),
        ({"auth": {"method": "token"}}, "needs armada.auth.existingSecret"),
        ({"auth": {"method": "basic", "existingSecret": "x"}}, "needs armada.auth.basic.username"),
        ({"auth": {"method": "oidc", "existingSecret": "x"}}, "needs armada.auth.oidc.providerUrl"),
        ({"tls": {"existingSecret": "x"}}, "needs armada.tls.enabled"),
        ({"tls": {"enabled": True, "secretKeys": {"key": "x"}}}, "belong together"),
    ],
)
async def test_values_that_cannot_be_meant_are_refused(helm: Binaries, told: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartError) as caught:
        await render(helm, values(**told))
    assert said in str(caught.value)
