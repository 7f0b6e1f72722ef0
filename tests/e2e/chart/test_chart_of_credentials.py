"""With scoped credentials, the chart gives agents no keys of the bucket, and lets the coordinator give them others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.cluster.configuration import NODE_VARIABLE, AgentConfiguration
from cedana_sched.cluster.coordinator.credentials.authorization_rules import AUDIENCE
from cedana_sched.cluster.coordinator.credentials.certificate import AUTHORITIES
from cedana_sched.cluster.coordinator.credentials.endpoint import PATH
from tests.cluster.api.client import Object
from tests.cluster.binaries.build import Binaries
from tests.e2e.product.rendering import NAMESPACE, ChartError, coordinator_of, lint, named, pods_of, render

pytestmark = pytest.mark.any_shape

NAME = "cedana-sched-credentials"
SCOPED: dict[str, Any] = {"enabled": True, "roleArn": "arn:aws:iam::1:role/r", "durationSeconds": 1800}
BUCKET: dict[str, Any] = {"bucket": "lab", "prefix": "prod", "existingSecret": "lab-s3"}
OFF: dict[str, Any] = {"storage": {"s3": BUCKET}}
ON: dict[str, Any] = {"storage": {"s3": {**BUCKET, "scopedCredentials": SCOPED}, "sharedNamespaces": ["shared"]}}


def agent_in(objects: list[Object]) -> Object:
    pod: Object = dict(pods_of(objects))["cedana-sched-agent"]
    return pod


def texts(one: Any) -> str:
    return json.dumps(one)


async def test_agents_have_no_key_of_the_bucket_and_the_coordinator_has(helm: Binaries) -> None:
    await lint(helm, ON)
    objects = await render(helm, ON)
    assert "lab-s3" not in texts(agent_in(objects))
    assert "AWS_" not in texts(agent_in(objects))
    mentioned = {name for name, pod in pods_of(objects) if "lab-s3" in texts(pod)}
    assert "cedana-sched-coordinator" in mentioned
    assert "cedana-sched-agent" in {name for name, pod in pods_of(await render(helm, OFF)) if "lab-s3" in texts(pod)}


async def test_agents_read_where_they_get_credentials(helm: Binaries) -> None:
    objects = await render(helm, ON)
    files = named(objects, "ConfigMap", "cedana-sched")["data"]
    s3 = AgentConfiguration.model_validate_json(files["agent.json"]).storage.s3
    assert s3 is not None
    assert s3.credentials is not None
    assert s3.credentials.url == f"https://{NAME}.{NAMESPACE}.svc{PATH}"
    agent = agent_in(objects)
    (mount,) = [one for one in agent["containers"][0]["volumeMounts"] if one["name"] == "credentials"]
    (volume,) = [one["projected"] for one in agent["volumes"] if one["name"] == "credentials"]
    token, authorities = volume["sources"]
    assert token["serviceAccountToken"]["audience"] == AUDIENCE
    assert s3.credentials.token_file == Path(mount["mountPath"], token["serviceAccountToken"]["path"])
    assert s3.credentials.authorities == Path(mount["mountPath"], AUTHORITIES)
    assert authorities == {"configMap": {"name": NAME}}
    assert NAME not in {one.get("secret", {}).get("secretName") for one in agent["volumes"]}


async def test_the_coordinator_reads_what_it_gives(helm: Binaries) -> None:
    objects = await render(helm, ON)
    given = coordinator_of(objects).credentials
    assert given is not None
    assert (given.name, given.account, given.shared_namespaces) == (NAME, "cedana-sched-agent", ("shared",))
    assert (given.bucket.bucket, given.bucket.prefix) == ("lab", "prod")
    assert (given.sessions.role_arn, given.sessions.endpoint, given.sessions.seconds) == (SCOPED["roleArn"], None, 1800)
    service = named(objects, "Service", NAME)["spec"]
    ports = dict(pods_of(objects))["cedana-sched-coordinator"]["containers"][0]["ports"]
    assert {"name": service["ports"][0]["targetPort"], "containerPort": given.port} in ports
    for kind in ("Secret", "ConfigMap"):  # both are filled by the coordinator
        assert not {"data", "stringData"} & named(objects, kind, NAME).keys()


async def test_turns_to_collect_stand_where_agents_read_them(helm: Binaries) -> None:
    objects = await render(helm, ON)
    files = named(objects, "ConfigMap", "cedana-sched")["data"]
    given = coordinator_of(objects).credentials
    assert given is not None
    assert AgentConfiguration.model_validate_json(files["agent.json"]).collection_turns == given.collection_turns
    assert given.collection_turns is not None
    assert "data" not in named(objects, "ConfigMap", given.collection_turns)
    for kind, verbs in (("agent", ["get", "list", "watch"]), ("coordinator", ["get", "patch"])):
        rules = named(objects, "Role", f"cedana-sched-{kind}")["rules"]
        assert [one["verbs"] for one in rules if given.collection_turns in one.get("resourceNames", ())] == [verbs]
    environment = dict(pods_of(objects))["cedana-sched-coordinator"]["containers"][0]["env"]
    assert {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}} in environment


@pytest.mark.parametrize(("told", "ports"), [(ON, ["operations", "credentials"]), (OFF, ["operations"])])
async def test_only_what_is_served_is_let_in(helm: Binaries, told: dict[str, Any], ports: list[str]) -> None:
    objects = await render(helm, {**told, "networkPolicy": {"enabled": True}})
    policy = named(objects, "NetworkPolicy", "cedana-sched-coordinator")["spec"]
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == ports


async def test_it_is_off_unless_somebody_turns_it_on(helm: Binaries) -> None:
    objects = await render(helm, OFF)
    assert NAME not in texts(objects)
    assert "cedana-sched-collections" not in texts(objects)
    assert coordinator_of(objects).credentials is None


@pytest.mark.parametrize(
    ("storage", "word"),
    [
        ({"posix": {"path": "/data"}, "s3": {"scopedCredentials": {"enabled": True}}}, "needs storage.s3.bucket"),
        ({"s3": {"bucket": "lab", "scopedCredentials": {"enabled": True}}}, "needs storage.s3.existingSecret"),
        ({"s3": {**BUCKET, "scopedCredentials": {"enabled": True, "durationSeconds": 60}}}, "durationSeconds"),
        ({"s3": {**BUCKET, "scopedCredentials": {"enabled": True, "roleArn": "role"}}}, "roleArn"),
        (
            {"s3": {**BUCKET, "scopedCredentials": {"enabled": True, "stsEndpoint": "http://sts"}}},
            "stsEndpoint: http://sts does not begin",
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused(helm: Binaries, storage: dict[str, Any], word: str) -> None:
    with pytest.raises(ChartError, match=word):
        await render(helm, {"storage": storage})
