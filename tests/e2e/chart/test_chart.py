"""What the chart writes is what components read, asks for little, and is refused where it cannot be meant."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_asyncio.client import ApiException

from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.component.configuration import NEVER_TOUCHED
from cedana_sched.model.objects import names
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched_armada.webhooks import PODS as ARMADA_PODS
from cedana_sched_kueue.webhooks import JOBS, OBJECTS, Settings
from cedana_sched_kueue.webhooks import PODS as KUEUE_PODS
from cedana_sched_volcano.extender.configuration import Configuration as ExtenderConfiguration
from cedana_sched_volcano.webhooks import JOBS as VCJOBS
from cedana_sched_volcano.webhooks import PODS as VOLCANO_PODS
from cedana_sched_webhooks.registrations import PODS, STATUSES, VALIDATE, paths_by_hook_name
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for
from tests.cluster.binaries.build import Binaries
from tests.cluster.images.catalog import REPOSITORY, find_images
from tests.e2e.product.rendering import (
    NAMESPACE,
    WORKLOADS,
    ChartError,
    coordinator_of,
    hooks_of,
    lint,
    named,
    notes,
    of_kind,
    pods_of,
    render,
    rules_of,
    webhooks_of,
)
from tests.e2e.product.volcano_extender import SEGMENT

pytestmark = pytest.mark.any_shape

S3: dict[str, Any] = {"storage": {"s3": {"bucket": "lab", "prefix": "prod", "existingSecret": "lab-s3"}}}
FOLDER: dict[str, Any] = {"storage": {"posix": {"path": "/data/snapshots"}}}
CLAIM: dict[str, Any] = {"storage": {"posix": {"path": "/data/snapshots", "existingClaim": "snapshots"}}}
EVERYTHING: dict[str, Any] = {
    **S3,
    "kueue": {"enabled": True},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "excludedNamespaces": ["monitoring"],
    "log": {"level": "debug"},
    "agent": {"holdAwaySeconds": 30},
    "coordinator": {"podLabels": {"team": "hpc"}, "extraEnv": [{"name": "A", "value": "b"}]},
}
VOLCANO: dict[str, Any] = {
    **S3,
    "volcano": {"enabled": True, "users": ["volcano"], "extender": {"enabled": True, "victimSteering": True}},
    "metrics": EVERYTHING["metrics"],
    "excludedNamespaces": ["monitoring"],
}
ARMADA: dict[str, Any] = {
    **S3,
    "armada": {"enabled": True, "url": "armada.example:50051", "queues": ["bio"]},
    "excludedNamespaces": ["monitoring"],
}
ALL_SCHEDULERS = {key: told[key] for told, key in ((EVERYTHING, "kueue"), (VOLCANO, "volcano"), (ARMADA, "armada"))}
VALIDATED = ("checkpointpolicies", "checkpointstorages")
EXTENDER = "cedana-sched-volcano-extender"
SCHEDULERS_OWN = ("kueue-system",)
"""Namespaces that the chart excludes beside Kubernetes' own."""
SEALING = "cedana-sched-sealing"


@pytest.mark.parametrize("told", [S3, FOLDER, CLAIM, EVERYTHING], ids=["s3", "folder", "claim", "everything"])
async def test_components_read_what_the_chart_writes(helm: Binaries, told: dict[str, Any], tmp_path: Path) -> None:
    await lint(helm, told)
    objects = await render(helm, told)
    files = named(objects, "ConfigMap", "cedana-sched")["data"]
    coordinator, webhooks = coordinator_of(objects), webhooks_of(objects)
    agent = AgentConfiguration.model_validate_json(files["agent.json"])
    assert coordinator.namespace == agent.namespace == webhooks.namespace == NAMESPACE
    assert str(agent.storage) == ("s3://lab/prod" if "s3" in told["storage"] else "/data/snapshots")
    holds = PreStopProxyConfiguration.model_validate_json(files["prestop-proxy.json"])
    assert webhooks.agent_port == holds.port == agent.hold_port
    assert agent.hold_listeners_folder == holds.listeners
    assert agent.hold_socket == holds.socket
    assert holds.agent_away_seconds == told.get("agent", {}).get("holdAwaySeconds", 120)
    levels = {read.log.level for read in (coordinator, agent, webhooks, holds)}
    assert levels == {told.get("log", {}).get("level", "info")}
    excluded = {NAMESPACE, *NEVER_TOUCHED, *SCHEDULERS_OWN, *told.get("excludedNamespaces", ())}
    assert webhooks.excluded_namespaces == coordinator.excluded_namespaces == agent.excluded_namespaces == excluded
    assert webhooks.restore.image == find_images()["agent"].tag
    assert named(objects, "Service", webhooks.service)
    assert named(objects, "Secret", webhooks.certificates.secret)
    assert named(objects, "MutatingWebhookConfiguration", webhooks.certificates.mutating_configuration)
    assert coordinator.adapters == webhooks.adapters == (("kueue",) if told is EVERYTHING else ())
    assert webhooks.adapter_settings == ({"kueue": {"users": [*Settings().users]}} if told is EVERYTHING else {})


@pytest.mark.parametrize(
    ("changed", "replaced"),
    [
        ({"kueue": {"enabled": True}}, {"coordinator", "webhooks"}),
        ({"armada": {**ARMADA["armada"], "queues": ["bio", "ml"]}}, {"coordinator", "webhooks"}),
        ({"agent": {"stallSeconds": 77}}, {"agent"}),
        ({"agent": {"interruptions": {"provider": "aws"}}}, {"agent"}),
        ({"agent": {"holdAwaySeconds": 33}}, {"prestop-proxy"}),
        ({"log": {"level": "debug"}}, {"agent", "coordinator", "webhooks"}),
        ({"excludedNamespaces": ["monitoring", "vault"]}, {"agent", "coordinator", "webhooks"}),
    ],
)
async def test_a_value_replaces_the_pods_of_those_who_read_it(
    helm: Binaries, changed: dict[str, Any], replaced: set[str]
) -> None:
    """A cluster has hundreds of agents, and each that is replaced lets its node wait."""
    before, after = [_pods(await render(helm, told)) for told in (ARMADA, {**ARMADA, **changed})]
    assert {name for name in before if before[name] != after[name]} == {f"cedana-sched-{name}" for name in replaced}


def _pods(objects: list[Object]) -> dict[str, Any]:
    return {body["metadata"]["name"]: body["spec"]["template"] for body in of_kind(objects, "Deployment", "DaemonSet")}


async def test_agents_seal_with_a_key_that_no_rendering_makes(helm: Binaries) -> None:
    """Each would make another, and a rollback brings an old one back."""
    objects = await render(helm, FOLDER)
    assert objects == await render(helm, FOLDER)
    assert coordinator_of(objects).sealing_secret == SEALING
    assert [one for one in of_kind(objects, "Secret") if "sealing" in one["metadata"]["name"]] == []
    storage, pod = _storage_of(objects), _agent_of(objects)
    assert (storage.key_file, storage.accept_unsealed) == (Path("/etc/cedana-sched-keys/keys"), False)
    (volume,) = (one for one in pod["volumes"] if one["name"] == "keys")
    items = [{"key": "keys", "path": "keys"}]
    assert volume["secret"] == {"secretName": SEALING, "defaultMode": 0o400, "items": items}
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "keys")
    assert mount["mountPath"] == "/etc/cedana-sched-keys"


async def test_the_key_may_be_the_admins_and_nothing_may_be_sealed(helm: Binaries) -> None:
    def told(**sealing: Any) -> dict[str, Any]:
        return {"storage": {**FOLDER["storage"], "sealing": sealing}}

    theirs = await render(helm, told(existingSecret="theirs", acceptUnsealed=True))
    assert coordinator_of(theirs).sealing_secret is None
    assert _secrets_of_the_coordinator(theirs) == []
    assert "theirs" in [volume.get("secret", {}).get("secretName") for volume in _agent_of(theirs)["volumes"]]
    assert _storage_of(theirs).accept_unsealed

    unsealed = await render(helm, told(enabled=False))
    assert _storage_of(unsealed).key_file is None
    assert coordinator_of(unsealed).sealing_secret is None
    assert _secrets_of_the_coordinator(unsealed) == []
    assert not [volume for volume in _agent_of(unsealed)["volumes"] if volume["name"] == "keys"]
    for field in ("acceptUnsealed", "writeUnsealed"):
        with pytest.raises(ChartError, match=f"{field}: true says nothing"):
            await render(helm, told(enabled=False, **{field: True}))


async def test_agents_may_have_the_key_before_they_seal(helm: Binaries) -> None:
    told = {"storage": {**FOLDER["storage"], "sealing": {"writeUnsealed": True}}}
    storage = _storage_of(await render(helm, told))
    assert (storage.key_file is not None, storage.write_unsealed) == (True, True)
    assert not _storage_of(await render(helm, FOLDER)).write_unsealed


async def test_ours_create_the_secrets_of_their_own_keys_and_no_others(helm: Binaries) -> None:
    objects = await render(helm, {**FOLDER, "fullnameOverride": "ours"})
    assert _secrets_of_the_coordinator(objects, "ours") == [
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]}
    ]
    policy = named(objects, "ValidatingAdmissionPolicy", "ours-narrowed-secrets")["spec"]
    [rule] = policy["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"], policy["failurePolicy"]) == (["secrets"], ["CREATE"], "Fail")
    [validation] = policy["validations"]
    account = f"system:serviceaccount:{NAMESPACE}:ours"
    allowed = f"in ['{account}-webhooks/ours-webhooks','{account}-coordinator/ours-sealing']"
    assert validation["expression"].endswith(allowed)
    assert "object.type == 'Opaque'" in validation["expression"], "else it is filled with somebody's token"


async def test_policies_let_be_what_webhooks_of_others_add(helm: Binaries) -> None:
    told = {**S3, "narrowedRights": {"keysOfOthers": ["policies.example.com/"]}}
    before, after = [of_kind(await render(helm, one), "ValidatingAdmissionPolicy") for one in (S3, told)]
    ours, theirs = (f"key.startsWith('{one}/')" for one in (names.GROUP, "policies.example.com"))
    changed = {policy["metadata"]["name"] for policy in after if policy not in before}
    assert changed == {
        "cedana-sched-agent",
        "cedana-sched-narrowed-pods",
        "cedana-sched-narrowed-metadata",
        "cedana-sched-narrowed-deployment",
    }
    assert json.loads(json.dumps(after).replace(f"{ours} || {theirs}", ours)) == before


def _secrets_of_the_coordinator(objects: list[Object], fullname: str = "cedana-sched") -> list[Object]:
    return [rule for rule in rules_of(objects, f"{fullname}-coordinator") if "secrets" in rule["resources"]]


def _storage_of(objects: list[Object]) -> StorageConfig:
    written = named(objects, "ConfigMap", "cedana-sched")["data"]["agent.json"]
    return AgentConfiguration.model_validate_json(written).storage


def _agent_of(objects: list[Object]) -> Any:
    return named(objects, "DaemonSet", "cedana-sched-agent")["spec"]["template"]["spec"]


async def test_who_keeps_holds_waits_for_the_port_of_an_older_agent(helm: Binaries) -> None:
    """That one has it until it has drained, after those of other nodes; nobody listens while a container backs off."""
    objects = await render(helm, S3)
    keeper, agent = (
        named(objects, "DaemonSet", f"cedana-sched-{part}")["spec"]["template"]["spec"]
        for part in ("prestop-proxy", "agent")
    )
    probe = keeper["containers"][0]["startupProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    assert patience >= 10 * agent["terminationGracePeriodSeconds"], "a tenth of the nodes at a time"


async def test_volcanos_extender_is_what_its_values_say(helm: Binaries) -> None:
    await lint(helm, VOLCANO)
    objects = await render(helm, VOLCANO)
    written = named(objects, "ConfigMap", "cedana-sched")["data"]["volcano-extender.json"]
    told = ExtenderConfiguration.model_validate_json(written)
    assert (told.namespace, told.victim_steering) == (NAMESPACE, True)
    assert told.excluded_namespaces == {NAMESPACE, *NEVER_TOUCHED, *SCHEDULERS_OWN, "monitoring"}
    assert "data" not in named(objects, "Secret", told.secret), "no rendering replaces the secret part of its address"
    [secrets] = [rule for rule in rules_of(objects, EXTENDER) if "secrets" in rule["resources"]]
    assert (secrets["resourceNames"], "create" in secrets["verbs"]) == ([told.secret], False)
    service, deployment = named(objects, "Service", EXTENDER), named(objects, "Deployment", EXTENDER)
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {"extender": told.port, "operations": told.operations_port}
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]} == ports
    assert deployment["spec"]["replicas"] == 2, "it must not be away"
    assert named(objects, "PodDisruptionBudget", EXTENDER)["spec"]["minAvailable"] == 1
    asks = named(objects, "NetworkPolicy", EXTENDER)["spec"]["ingress"][0]
    assert asks["ports"] == [{"port": "extender"}]
    assert asks["from"], "who can ask it has pods frozen"
    alerts = json.dumps(of_kind(objects, "PrometheusRule"))
    assert f'service=\\"{EXTENDER}\\"' in alerts
    without = await render(helm, {**VOLCANO, "volcano": {"enabled": True}})
    assert EXTENDER not in json.dumps(without)


async def test_replicas_of_one_revision_are_spread_whatever_is_left_of_the_earlier_one(helm: Binaries) -> None:
    volcano = {**VOLCANO["volcano"], "extender": {"enabled": True}}
    deployments = of_kind(await render(helm, {**VOLCANO, "volcano": volcano}), "Deployment")
    assert len(deployments) == 3
    for deployment in deployments:
        selector = deployment["spec"]["selector"]
        assert deployment["spec"]["template"]["spec"]["topologySpreadConstraints"] == [
            {
                "maxSkew": 1,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": selector,
                "matchLabelKeys": ["pod-template-hash"],
            }
            for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
        ]


@pytest.mark.parametrize(("written", "seconds"), [("500ms", 0.5), ("75ms", 0.075), ("1s", 1.0), ("20s", 20.0)])
async def test_volcanos_extender_knows_how_long_volcano_waits(helm: Binaries, written: str, seconds: float) -> None:
    volcano = {"enabled": True, "extender": {"enabled": True, "httpTimeout": written}}
    data = named(await render(helm, {**S3, "volcano": volcano}), "ConfigMap", "cedana-sched")["data"]
    told = ExtenderConfiguration.model_validate_json(data["volcano-extender.json"])
    assert told.timeout_seconds == pytest.approx(seconds)


async def test_the_notes_say_where_the_secret_part_of_the_extenders_address_stands(helm: Binaries) -> None:
    said = await notes(helm, VOLCANO)
    assert f"extender.urlPrefix: http://{EXTENDER}.{NAMESPACE}.svc:8713/{SEGMENT}\n" in said
    assert f"get secret {EXTENDER} -o jsonpath='{{.data.segment}}'" in said


NEXT_STEPS = {
    "kueue": "kubectl patch clusterqueue QUEUE --type merge",
    "volcano": "kubectl annotate queues.scheduling.volcano.sh QUEUE sched.cedana.ai/protect=true",
    "armada": "--set 'armada.queues={",
}
SWITCHES: dict[str, dict[str, Any]] = {
    "kueue": {"enabled": True},
    "volcano": {"enabled": True},
    "armada": {"enabled": True, "url": "armada.example:50051"},
}


@pytest.mark.parametrize(
    "enabled", [("kueue",), ("volcano",), ("armada",), ("armada", "kueue", "volcano")], ids="+".join
)
async def test_the_notes_name_the_adapters_and_the_next_step_of_each(helm: Binaries, enabled: tuple[str, ...]) -> None:
    said = await notes(helm, {**S3, **{name: SWITCHES[name] for name in enabled}})
    assert f"Enabled adapters: {', '.join(enabled)}.\n" in said
    assert {name for name, step in NEXT_STEPS.items() if step in said} == set(enabled)
    assert "CEDANA_CHECKPOINT" in said


async def test_the_notes_say_that_no_eviction_is_held_without_an_adapter(helm: Binaries) -> None:
    said = await notes(helm, S3)
    assert "No adapter is enabled, so no eviction is held" in said
    assert not any(step in said for step in (*NEXT_STEPS.values(), "CEDANA_CHECKPOINT"))
    others = await notes(helm, {**S3, "coordinator": {"extraAdapters": ["toy"]}})
    assert "Enabled adapters: toy.\n" in others


async def test_the_notes_name_the_queues_of_armada(helm: Binaries) -> None:
    armada = SWITCHES["armada"]
    some = await notes(helm, {**S3, "armada": {**armada, "queues": ["bio", "ml"]}})
    assert "the jobs of the queues bio, ml are protected" in some
    assert "--set 'armada.queues={bio,ml,QUEUE}'" in some
    only = await notes(helm, {**S3, "armada": {**armada, "onlyQueues": ["bio"]}})
    assert "submit and cancel on bio.\n" in only
    assert "submit and cancel on them, and on the queues of jobs that name an id.\n" in some


@pytest.mark.parametrize("replicas", [1, 2])
async def test_a_single_replica_does_not_stop_the_drain_of_its_node(helm: Binaries, replicas: int) -> None:
    volcano = {**VOLCANO["volcano"], "extender": {"enabled": True, "replicas": replicas}}
    objects = await render(helm, {**VOLCANO, "volcano": volcano, "webhooks": {"replicas": replicas}})
    budgets = {body["metadata"]["name"] for body in of_kind(objects, "PodDisruptionBudget")}
    assert budgets == ({EXTENDER, "cedana-sched-webhooks"} if replicas > 1 else set())


async def test_adapters_of_others_are_told_what_their_values_say(helm: Binaries) -> None:
    settings = {"toy": {"url": "toy:1", "deep": {"list": [1]}}}
    adapters = {"extraAdapters": ["toy", "quiet"], "adapterSettings": settings}
    await lint(helm, {**S3, "coordinator": adapters})
    alone = coordinator_of(await render(helm, {**S3, "coordinator": adapters}))
    assert (alone.adapters, alone.adapter_settings) == (("toy", "quiet"), settings)
    beside = coordinator_of(await render(helm, {**ARMADA, "coordinator": adapters}))
    assert beside.adapters == ("toy", "quiet", "armada")
    assert beside.adapter_settings.keys() == {"toy", "armada"}
    assert beside.adapter_settings["toy"] == settings["toy"]


async def test_names_are_those_that_the_code_uses(helm: Binaries) -> None:
    objects = await render(helm, EVERYTHING)
    runtime_class = named(objects, "RuntimeClass", names.RUNTIME_CLASS)
    assert runtime_class["scheduling"]["nodeSelector"] == {names.NODE_PREPARED: "true"}
    (check,) = of_kind(objects, "AdmissionCheck")
    assert check["spec"]["controllerName"] == names.ADMISSION_CHECK_CONTROLLER
    written = json.dumps(of_kind(objects, "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy"))
    assert f"'{names.ID}'" in written
    assert f"'{names.GROUP}/'" in written
    images = {container["image"] for _, pod in pods_of(objects) for container in pod["containers"]}
    assert images == {image.tag for image in find_images().values() if image.is_product}


async def test_the_policy_of_records_knows_our_accounts(helm: Binaries) -> None:
    objects = await render(helm, {**EVERYTHING, "fullnameOverride": "ours"})
    policy = named(objects, "ValidatingAdmissionPolicy", "ours-records")
    assert named(objects, "ValidatingAdmissionPolicyBinding", "ours-records")["spec"]["policyName"] == "ours-records"
    told = json.dumps(policy["spec"]["matchConditions"])
    for part in ("coordinator", "agent"):
        account = named(objects, "ServiceAccount", f"ours-{part}")["metadata"]
        assert f"'system:serviceaccount:{account['namespace']}:{account['name']}'" in told
    (uninstall,) = (pod for name, pod in pods_of(objects) if name == "ours-uninstall")
    assert uninstall["serviceAccountName"] == "ours-coordinator"


async def test_no_webhook_can_stop_a_cluster(helm: Binaries) -> None:
    found = hooks_of(await render(helm, EVERYTHING))
    found += [*hooks_of(await render(helm, VOLCANO)), *hooks_of(await render(helm, ARMADA))]
    for hook in found:
        assert hook["failurePolicy"] == "Ignore"
        assert hook["timeoutSeconds"] <= 5
        assert "caBundle" not in hook["clientConfig"], "an upgrade would take it away"
        assert "path" not in hook["clientConfig"]["service"], "an upgrade would take the secret part away"
        if hook["name"] in {f"pods.{names.GROUP}", f"jobs.{names.GROUP}"}:
            (excluded,) = hook["namespaceSelector"]["matchExpressions"]
            assert set(excluded["values"]) == {NAMESPACE, *NEVER_TOUCHED, *SCHEDULERS_OWN, "monitoring"}
            assert "asks-for-protection" in {condition["name"] for condition in hook["matchConditions"]}


@pytest.mark.parametrize("told", [EVERYTHING, VOLCANO, ARMADA], ids=["everything", "volcano", "armada"])
async def test_every_webhook_of_the_chart_has_a_path_that_is_answered(helm: Binaries, told: dict[str, Any]) -> None:
    objects = await render(helm, told)
    of_schedulers = (JOBS, OBJECTS, KUEUE_PODS, VOLCANO_PODS, VCJOBS, ARMADA_PODS)
    answered = (PODS, STATUSES, *(f"{VALIDATE}{kind}" for kind in VALIDATED), *of_schedulers)
    assert {hook["name"] for hook in hooks_of(objects)} <= paths_by_hook_name(answered).keys()


async def test_only_pods_that_ask_for_protection_wait_for_a_webhook_where_that_is_told(helm: Binaries) -> None:
    for told in (EVERYTHING, VOLCANO, ARMADA):
        hooks = hooks_of(await render(helm, {**told, "webhooks": {"podFailurePolicy": "Fail"}}))
        failing = [hook["name"] for hook in hooks if hook["failurePolicy"] != "Ignore"]
        assert failing == ["pods.sched.cedana.ai"]


async def test_metrics_of_every_component_are_asked_for(helm: Binaries) -> None:
    objects = await render(helm, VOLCANO)
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    selected = {
        service["metadata"]["name"]: {port["name"]: port["port"] for port in service["spec"]["ports"]}
        for service in of_kind(objects, "Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    }
    ports = {name: selected[name].get(endpoint["port"]) for name in selected}
    names_of = {f"cedana-sched-{part}": 8081 for part in ("coordinator", "webhooks", "volcano-extender")}
    assert (ports, endpoint["path"]) == ({**names_of, "cedana-sched-agent": 10351}, "/metrics")
    assert endpoint["bearerTokenFile"]
    told = json.dumps(named(objects, "ConfigMap", "cedana-sched")["data"])
    assert told.count(r"\"metricsAuthentication\": true") == len(ports), "each asks who reads them"
    asks = named(objects, "ClusterRoleBinding", "cedana-sched-metrics-access")["subjects"]
    assert {account["name"] for account in asks} == set(ports)


async def test_an_agent_finishes_and_the_next_holds_begin_first(helm: Binaries) -> None:
    objects = await render(helm, S3)
    agent, holds = (named(objects, "DaemonSet", f"cedana-sched-{part}")["spec"] for part in ("agent", "prestop-proxy"))
    assert agent["template"]["spec"]["terminationGracePeriodSeconds"] == 3600
    update = holds["updateStrategy"]
    assert (update["type"], update["rollingUpdate"]["maxUnavailable"]) == ("RollingUpdate", 0)
    assert update["rollingUpdate"]["maxSurge"]
    other = await render(helm, {**S3, "agent": {"terminationGracePeriodSeconds": 60}})
    pod = named(other, "DaemonSet", "cedana-sched-agent")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 60


async def test_the_port_of_holds_is_nobody_elses_and_two_of_them_share_it(helm: Binaries) -> None:
    objects = await render(helm, {**S3, "agent": {"holdPort": 20352}})
    agent, holds = (
        named(objects, "DaemonSet", f"cedana-sched-{part}")["spec"]["template"] for part in ("agent", "prestop-proxy")
    )
    assert {"name": "prestop-proxy", "containerPort": 20352, "hostPort": 20352} in agent["spec"]["containers"][0][
        "ports"
    ]
    assert "ports" not in holds["spec"]["containers"][0]
    other = await render(helm, {**S3, "agent": {"holdPort": 20352, "holdAwaySeconds": 7}})
    changed = named(other, "DaemonSet", "cedana-sched-prestop-proxy")["spec"]["template"]
    assert changed["metadata"]["annotations"] != holds["metadata"]["annotations"]


ASKS = {("tokenreviews", "create"), ("subjectaccessreviews", "create")}
"""Who reads its metrics asks each component; nothing is kept of it."""
LOOPBACK = {("agent", "prestop-proxy")}
"""Ports that are declared, and that nobody reaches over a network."""


@pytest.mark.parametrize("told", [S3, EVERYTHING, VOLCANO, ARMADA], ids=["s3", "everything", "volcano", "armada"])
async def test_every_pod_is_behind_a_policy_that_names_its_ports(helm: Binaries, told: dict[str, Any]) -> None:
    objects = await render(helm, told)
    policies = [body["spec"] for body in of_kind(objects, "NetworkPolicy")]
    selected = set()
    for body in of_kind(objects, *WORKLOADS):
        template = body["spec"]["template"]
        labels, part = template["metadata"]["labels"], template["metadata"]["labels"]["app.kubernetes.io/component"]
        around = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels.items()]
        assert len(around) == 1, part
        assert around[0]["policyTypes"] == ["Ingress"]
        open_ = {port["port"] for rule in around[0]["ingress"] for port in rule["ports"]}
        declared = {port["name"] for one in template["spec"]["containers"] for port in one.get("ports", ())}
        assert declared - {port for part_, port in LOOPBACK if part_ == part} == open_, part
        selected.add(json.dumps(around[0], sort_keys=True))
    assert len(selected) == len(policies), "one selects nobody"


async def test_who_reaches_a_port_is_what_the_values_say(helm: Binaries) -> None:
    api_servers: list[Object] = [{"ipBlock": {"cidr": "10.0.0.1/32"}}]
    prometheus: list[Object] = [{"namespaceSelector": {}}]
    policy = {"apiServerFrom": api_servers, "metricsFrom": prometheus}
    for body in of_kind(await render(helm, {**VOLCANO, "networkPolicy": policy}), "NetworkPolicy"):
        for rule in body["spec"]["ingress"]:
            [port] = rule["ports"]
            if port["port"] != "extender":
                assert rule["from"] == {"https": api_servers, "operations": prometheus}[port["port"]]
    assert of_kind(await render(helm, {**S3, "networkPolicy": {"enabled": False}}), "NetworkPolicy") == []


async def test_every_container_says_why_it_ended(helm: Binaries) -> None:
    """`kubectl describe pod` shows its last lines; the log itself is gone after two more starts."""
    for name, pod in pods_of(await render(helm, {**EVERYTHING, **VOLCANO})):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["terminationMessagePolicy"] == "FallbackToLogsOnError", name


async def test_every_container_has_its_share_and_a_limit_of_memory(helm: Binaries) -> None:
    seen = set()
    for name, pod in pods_of(await render(helm, {**EVERYTHING, **VOLCANO, **ARMADA, **ALL_SCHEDULERS})):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            resources = container.get("resources", {})
            assert resources.get("requests", {}).keys() >= {"cpu", "memory"}, name
            assert "memory" in resources.get("limits", {}), name
            seen.add(name.removeprefix("cedana-sched-"))
    assert seen == {"coordinator", "webhooks", "agent", "prestop-proxy", "uninstall", "volcano-extender"}


async def test_an_agents_limit_has_room_for_the_dumps_that_it_may_begin(helm: Binaries) -> None:
    def limit_of(objects: list[Object]) -> Any:
        return _agent_of(objects)["containers"][0]["resources"]["limits"]["memory"]

    gib = 1 << 30
    assert limit_of(await render(helm, S3)) == str(3 * gib)
    larger = {"dumps": {"memoryBytes": 8 * gib}, "resources": {"requests": {"memory": "1Gi"}}}
    assert limit_of(await render(helm, {**S3, "agent": larger})) == str(9 * gib)
    told = {"resources": {"limits": {"memory": "6Gi"}}}
    assert limit_of(await render(helm, {**S3, "agent": told})) == "6Gi"


async def test_only_the_agent_has_privileges(helm: Binaries, api: Api) -> None:
    """Pod Security itself says so."""
    objects = await render(helm, {**EVERYTHING, **VOLCANO})
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "restricted-test", "labels": labels}}
    await api.apply(namespace)
    try:
        await wait_for(api, "v1", "ServiceAccount", "default", lambda _: True, namespace="restricted-test")
        refused = {}
        for name, pod in pods_of(objects):
            spec = {**pod, "serviceAccountName": "default", "priorityClassName": None}
            body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
            refused[name] = await said_of(api, body)
    finally:
        await api.delete("v1", "Namespace", "restricted-test")
    assert "privileged" in refused.pop("cedana-sched-agent")
    of_holds = refused.pop("cedana-sched-prestop-proxy")  # the node's network, and root's socket
    assert "hostNetwork" in of_holds
    assert not {"privileged", "capabilities", "hostPID"} & set(re.findall(r"\w+", of_holds))
    assert set(refused.values()) == {""}
    restricted = {"cedana-sched-coordinator", "cedana-sched-webhooks", "cedana-sched-uninstall", EXTENDER}
    assert set(refused) == restricted


async def said_of(api: Api, pod: Object) -> str:
    """Why a pod is refused; empty when it is not."""
    try:
        await api.call("POST", "/api/v1/namespaces/restricted-test/pods", query={"dryRun": "All"}, body=pod)
    except ApiException as error:
        return str(json.loads(error.body or b"{}").get("message"))
    return ""


async def test_everybody_has_the_least_rights(helm: Binaries) -> None:
    objects = await render(helm, {**EVERYTHING, **VOLCANO, **ARMADA})
    for body in of_kind(objects, "ClusterRole", "Role"):
        for rule in body["rules"]:
            assert "*" not in {*rule.get("apiGroups", ()), *rule.get("resources", ()), *rule["verbs"]}
    agent = {(resource, verb) for rule in rules_of(objects, "cedana-sched-agent")
             for resource in rule["resources"] for verb in rule["verbs"]}  # fmt: skip
    writes = {(resource, verb) for resource, verb in agent if verb not in {"get", "list", "watch"}}
    assert writes == {
        ("checkpoints/status", "patch"), ("restores/status", "patch"), ("nodes", "patch"), ("pods/status", "patch"),
        ("events", "create"), ("events", "patch"), *ASKS,
    }  # fmt: skip
    extender = {triple for rule in rules_of(objects, EXTENDER) for triple in triples(rule)}
    assert {(resource, verb) for _, resource, verb in extender if verb not in {"get", "list", "watch"}} == {
        ("pods", "patch"),
        ("secrets", "patch"),
        *ASKS,
    }
    secrets = {triple for rule in _secrets_of_the_coordinator(objects) for triple in triples(rule)}
    assert secrets == {("", "secrets", "create")}, "it need not know the key that it makes"


async def test_an_adapter_has_the_rights_that_it_asks_for(helm: Binaries) -> None:
    told = {**EVERYTHING, **VOLCANO, "kubernetes": {"enabled": True}}
    given = rules_of(await render(helm, told), "cedana-sched-coordinator")
    has = {triple for rule in given for triple in triples(rule)}
    for fragment in sorted(REPOSITORY.glob("adapters/*/rbac.yaml")):
        asked = {triple for rule in yaml.safe_load(fragment.read_text())["rules"] for triple in triples(rule)}
        assert asked <= has, fragment


@pytest.mark.parametrize("selects", [False, True])
async def test_webhooks_are_called_for_all_new_pods_and_jobs_only_where_policies_select(
    helm: Binaries, selects: bool
) -> None:
    values = {**S3, "kubernetes": {"enabled": True, "podSelectors": selects}}
    objects = await render(helm, values)
    (configuration,) = of_kind(objects, "MutatingWebhookConfiguration")
    hooks = {hook["name"]: hook["namespaceSelector"] for hook in configuration["webhooks"]}
    for name in ("kubernetes-pods.sched.cedana.ai", "kubernetes-jobs.sched.cedana.ai"):
        assert hooks[name].get("matchLabels") == (None if selects else {names.PROTECT: "true"})
        assert hooks[name]["matchExpressions"], "excluded namespaces stay excluded"
    for settings in (webhooks_of(objects).adapter_settings, coordinator_of(objects).adapter_settings):
        assert settings["kubernetes"]["podSelectors"] is selects


@pytest.mark.parametrize("beside", [False, True])
async def test_kueues_adapter_hands_over_deletions_only_beside_the_adapter_that_explains_them(
    helm: Binaries, beside: bool
) -> None:
    values = {**S3, "kueue": {"enabled": True}, "kubernetes": {"enabled": beside}}
    settings = coordinator_of(await render(helm, values)).adapter_settings
    assert settings["kueue"]["handsOverDeletions"] is beside
    if beside:
        assert settings["kubernetes"]["otherJobLabels"] == ["kueue.x-k8s.io/queue-name"]


@pytest.mark.parametrize("beside", [False, True])
async def test_volcanos_adapter_answers_deletions_beside_the_adapter_that_explains_them(
    helm: Binaries, beside: bool
) -> None:
    values = {**S3, "volcano": {"enabled": True}, "kueue": {"enabled": True}, "kubernetes": {"enabled": beside}}
    objects = await render(helm, values)
    settings = {"handsOverDeletions": beside, "otherLabels": ["kueue.x-k8s.io/podset"]}
    assert coordinator_of(objects).adapter_settings["volcano"] == settings
    confirmation = webhooks_of(objects).deletion_confirmation
    assert (confirmation.schedulers, confirmation.other_pods) == (
        (frozenset(), True) if beside else ({"volcano"}, False)
    )


def triples(rule: Object) -> Iterator[tuple[str, str, str]]:
    return itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])


RAY_JOB: Object = {"apiVersion": "ray.io/v1", "kind": "RayJob", "resource": "rayjobs"}


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({}, "say where snapshots go"),
        ({"storage": {**S3["storage"], **FOLDER["storage"]}}, "not both"),
        ({"storage": {"s3": {"bucket": "lab", "endpoint": "http://s3.example"}}}, "allowHttp"),
        ({"storage": {"s3": {"bucket": "lab", "accessKey": "a"}}}, "belong together"),
        ({"storage": {"s3": {"bucket": "Lab"}}}, "/storage/s3/bucket"),
        ({**S3, "agents": {}}, "'agents' not allowed"),
        ({**S3, "agent": {"interruptions": {"provider": "moon"}}}, "/agent/interruptions/provider"),
        (
            {**S3, "agent": {"interruptions": {"metadataUrl": "http://[2001:db8::1]"}}},
            "/agent/interruptions/metadataUrl",
        ),
        (
            {**S3, "agent": {"interruptions": {"metadataUrl": "http://169.254.169.254"}}},
            "agent.interruptions.metadataUrl: http://169.254.169.254 says nothing with",
        ),
        ({**S3, "kubernetes": {"enabled": "yes"}}, "/kubernetes/enabled"),
        ({**S3, "kubernetes": {"enabled": True, "podSelectors": "yes"}}, "/kubernetes/podSelectors"),
        ({**S3, "kubernetes": {"podSelectors": True}}, "kubernetes.podSelectors: true needs kubernetes.enabled"),
        ({**S3, "kubernetes": {"enabled": True, "schedulerUsers": []}}, "needs kubernetes.schedulerUsers"),
        ({**S3, "kubernetes": {"enabled": True, "schedulerUsers": [""]}}, "/kubernetes/schedulerUsers/0"),
        ({**S3, "kubernetes": {"enabled": True, "taintUsers": []}}, "needs kubernetes.taintUsers"),
        ({**S3, "kubernetes": {"enabled": True, "taintUsers": "node-controller"}}, "/kubernetes/taintUsers"),
        ({**S3, "kubernetes": {"users": []}}, "'users' not allowed"),
        ({**S3, "kueue": {"kinds": [{"apiVersion": "v1", "kind": "Pod", "resource": "pods"}]}}, "/kueue/kinds/0"),
        ({**S3, "kueue": {"kinds": [{**RAY_JOB, "kind": "rayJob"}]}}, "/kueue/kinds/0/kind"),
        ({**S3, "kueue": {"kinds": [{**RAY_JOB, "resource": "RayJobs"}]}}, "/kueue/kinds/0/resource"),
        ({**S3, "kueue": {"kinds": [{**RAY_JOB, "plural": "rayjobs"}]}}, "'plural' not allowed"),
        ({**S3, "narrowedRights": {"keysOfOthers": ["a') || true"]}}, "/narrowedRights/keysOfOthers/0"),
        ({**S3, "narrowedRights": {"keysOfOthers": [""]}}, "/narrowedRights/keysOfOthers/0"),
        ({**S3, "webhooks": {"timeoutSeconds": 60}}, "/webhooks/timeoutSeconds"),
        ({**S3, "coordinator": {"adapterSettings": {"toy": {}}}}, "name toy in coordinator.extraAdapters"),
        ({**S3, "coordinator": {"adapterSettings": {"toy": "x"}}}, "/coordinator/adapterSettings/toy"),
        ({**S3, "kueue": {"enabled": True, "users": []}}, "needs kueue.users"),
        ({**S3, "volcano": {"enabled": True, "users": []}}, "needs volcano.users"),
        ({**S3, "volcano": {"extender": {"enabled": True}}}, "needs volcano.enabled"),
        ({**S3, "volcano": {"enabled": True, "extender": {"httpTimeout": "0.5"}}}, "/volcano/extender/httpTimeout"),
        ({**S3, "volcano": {"enabled": True, "extender": {"port": 8081}}}, "8081 is taken"),
    ],
)
async def test_values_that_cannot_be_meant_are_refused(helm: Binaries, told: dict[str, Any], said: str) -> None:
    with pytest.raises(ChartError) as caught:
        await render(helm, told)
    assert said in str(caught.value)
