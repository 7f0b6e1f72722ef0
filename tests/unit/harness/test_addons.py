"""What add-ons are told, in which order they are laid into a cluster, and what is said when one does not come up."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tests.cluster.addons import catalog, charts, coredns, kwok
from tests.cluster.addons.catalog import chosen
from tests.cluster.addons.deployments import is_available, trouble_of, wait_available
from tests.cluster.addons.kueue import Kueue
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.client import Api, Event
from tests.cluster.binaries.build import Binaries
from tests.cluster.binaries.catalog import TOOLS
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps

_CHART_CONFIGURATION = {"leaderElection": {"leaderElect": True}, "integrations": {"frameworks": ["batch/job", "pod"]}}


@pytest.fixture
def binaries(tmp_path: Path) -> Binaries:
    """What builds of Kueue and Volcano leave, with charts of a few lines."""
    folders = {}
    for tool, version, chart in (
        ("kueue", "v0.19.2", "charts/kueue"),
        ("volcano", "v1.14.1", "installer/helm/chart/volcano"),
    ):
        folders[tool] = tmp_path / tool
        (folders[tool] / "files" / chart).mkdir(parents=True)
        (folders[tool] / "complete.json").write_text(json.dumps({"version": version}))
    values = {"managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(_CHART_CONFIGURATION)}}
    (folders["kueue"] / "files/charts/kueue/values.yaml").write_text(yaml.safe_dump(values))
    return Binaries(TOOLS, folders)


def _configuration(values: Mapping[str, Any]) -> Any:
    return yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"])


def test_what_is_laid_over_values_keeps_null_by_which_helm_takes_a_value_away() -> None:
    values = {"limits": {"cpu": "2", "memory": "1Gi"}, "replicas": 1}

    laid_over = charts.overlaid(values, {"limits": {"cpu": None}, "labels": {"a": "b"}})

    assert laid_over == {"limits": {"cpu": None, "memory": "1Gi"}, "replicas": 1, "labels": {"a": "b"}}
    assert values == {"limits": {"cpu": "2", "memory": "1Gi"}, "replicas": 1}


def test_kueue_is_installed_with_an_image_that_is_never_pulled_and_the_charts_own_configuration(
    binaries: Binaries,
) -> None:
    values = Kueue().release(binaries).values

    image = values["controllerManager"]["manager"]["image"]
    assert image == {"repository": "registry.k8s.io/kueue/kueue", "tag": "v0.19.2", "pullPolicy": "Never"}
    assert [each.name for each in Kueue().images(_with_program(binaries, "kueue"))] == [
        f"{image['repository']}:{image['tag']}"
    ]
    assert _configuration(values) == {**_CHART_CONFIGURATION, "leaderElection": {"leaderElect": False}}


def test_what_a_test_wants_of_kueue_goes_over_the_rest(binaries: Binaries) -> None:
    fair = {"preemptionStrategies": ["LessThanOrEqualToFinalShare"]}
    kueue = Kueue(
        values={"controllerManager": {"featureGates": [{"name": "Some", "enabled": True}]}},
        configuration={"fairSharing": fair, "integrations": {"frameworks": ["batch/job"]}},
    )

    values = kueue.release(binaries).values

    assert values["controllerManager"]["featureGates"] == [{"name": "Some", "enabled": True}]
    assert values["controllerManager"]["manager"]["image"]["pullPolicy"] == "Never"
    assert _configuration(values)["fairSharing"] == fair
    assert _configuration(values)["integrations"] == {"frameworks": ["batch/job"]}


def test_another_scheduler_configuration_gives_volcano_another_scheduler_pod(binaries: Binaries) -> None:
    releases = [Volcano(scheduler=text).release(binaries) for text in ("", "actions: enqueue", "actions: reclaim")]

    labels = [release.values["custom"]["scheduler_podLabels"]["configuration"] for release in releases]
    assert len(set(labels)) == 3
    assert releases[0].values["custom"]["scheduler_config_override"] is None
    assert releases[2].values["custom"]["scheduler_config_override"] == "actions: reclaim"
    assert releases[0].values["basic"]["image_tag_version"] == "v1.14.1"


def test_dns_stands_where_kubelets_send_pods_and_listens_where_no_privilege_is_needed() -> None:
    bodies = {body["kind"]: body for body in coredns.objects("10.96.0.10")}

    service, deployment = bodies["Service"]["spec"], bodies["Deployment"]["spec"]
    container = deployment["template"]["spec"]["containers"][0]
    assert service["clusterIP"] == "10.96.0.10"
    assert service["selector"] == deployment["template"]["metadata"]["labels"]
    assert {port["targetPort"] for port in service["ports"]} == {each["containerPort"] for each in container["ports"]}
    assert all(each["containerPort"] > 1023 for each in container["ports"])
    assert f"cluster.local:{container['ports'][0]['containerPort']}" in bodies["ConfigMap"]["data"]["Corefile"]


def _stage(name: str) -> str:
    selector = {"matchExpressions": [{"key": ".status.phase", "operator": "In", "values": ["Running"]}]}
    return yaml.safe_dump({"kind": "Stage", "metadata": {"name": name}, "spec": {"selector": selector}})


def test_pods_of_jobs_on_fake_nodes_end_only_when_they_say_so(tmp_path: Path) -> None:
    for path in (
        "node/fast/node-initialize",
        "node/heartbeat-with-lease/node-heartbeat-with-lease",
        "pod/fast/pod-ready",
        "pod/fast/pod-complete",
    ):
        file = tmp_path / "stage" / f"{path}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_stage(file.stem))

    stages = {stage["metadata"]["name"]: stage["spec"] for stage in kwok.stages(tmp_path)}

    assert set(stages) == {
        "node-initialize",
        "node-heartbeat-with-lease",
        "pod-ready",
        "pod-complete",
        "pod-ready-again",
    }
    expression = f'.metadata.annotations["{kwok.COMPLETE_AFTER}"]'
    assert {"key": expression, "operator": "Exists"} in stages["pod-complete"]["selector"]["matchExpressions"]
    assert stages["pod-complete"]["delay"]["durationFrom"] == {"expressionFrom": expression}
    assert len(stages["pod-ready"]["selector"]["matchExpressions"]) == 1


# --- order


class _Noted:
    """An add-on that notes when its installation begins and ends."""

    tools: tuple[str, ...] = ()

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self._notes = notes

    def images(self, binaries: Binaries) -> list[Any]:
        return []

    async def install(self, cluster: Cluster, binaries: Binaries, steps: Steps) -> None:
        self._notes.append(f"{self.name} begins")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._notes.append(f"{self.name} ends")


def _cluster(tmp_path: Path) -> Cluster:
    async def import_images(images: list[Path]) -> None:
        assert images == []

    place = SimpleNamespace(logs=tmp_path)
    return cast("Cluster", SimpleNamespace(nodes={}, import_images=import_images, place=place))


async def test_kueue_comes_when_the_pods_that_its_webhooks_would_hold_up_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*names: str, steps: Steps) -> Binaries:
        return Binaries({}, {})

    monkeypatch.setattr(catalog, "ensure", nothing)
    notes: list[str] = []
    addons = [_Noted(name, notes) for name in ("kueue", "volcano", "another", "coredns")]

    await catalog.install(_cluster(tmp_path), addons, Steps(io.StringIO()))

    assert len(notes) == 8
    assert notes.index("kueue begins") > max(notes.index("volcano ends"), notes.index("another ends"))
    assert notes.index("another begins") < notes.index("volcano ends"), "independent ones go together"
    assert notes.index("coredns begins") < notes.index("volcano ends")


def test_a_name_that_is_no_addons_is_refused_with_those_that_are() -> None:
    with pytest.raises(ClusterError, match=r"no add-on 'kueu'; name some of .*kueue"):
        chosen(["coredns", "kueu"])


def test_an_addon_with_settings_takes_the_place_of_the_one_of_its_name() -> None:
    mine = Kueue(values={"a": 1})

    assert chosen(["kueue", "coredns", mine])[0] is mine


# --- waiting


def _deployment(**status: int) -> dict[str, Any]:
    return {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": status}


@pytest.mark.parametrize(
    ("status", "available"),
    [
        ({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}, True),
        ({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1, "availableReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1}, False),
        ({}, False),
    ],
    ids=["all of it", "an older template's", "an older pod is left", "not ready", "not seen yet"],
)
def test_a_deployment_is_available_when_only_ready_pods_of_its_latest_template_are_there(
    status: dict[str, int], available: bool
) -> None:
    assert is_available(_deployment(**status)) is available


def _pod(reason: str = "", restarts: int = 0, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}} if reason else {"running": {}}
    container = {
        "name": "manager",
        "state": state,
        "restartCount": restarts,
        "lastState": {"terminated": {"exitCode": 1}},
    }
    return {
        "metadata": {"name": "kueue-x", "namespace": "kueue-system", "uid": "u1"},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Pending", "containerStatuses": [container]},
    }


def test_only_what_does_not_mend_itself_counts_as_trouble() -> None:
    assert trouble_of({"metadata": {}}) is None
    assert trouble_of(_pod()) is None
    assert trouble_of(_pod("ContainerCreating")) is None
    assert trouble_of(_pod("CrashLoopBackOff", restarts=1)) is None
    assert trouble_of(_pod("CrashLoopBackOff", restarts=3)) == "ended 3 times, last with status 1"
    assert trouble_of(_pod("ErrImageNeverPull", message="not present")) == "cannot start: ErrImageNeverPull not present"


class _FakeApi:
    """One Deployment and one pod, which never change."""

    def __init__(self, deployment: dict[str, Any], pod: dict[str, Any]) -> None:
        self._found = {"Deployment": deployment, "Pod": pod}

    async def watch(self, api_version: str, kind: str, namespace: str, *, field_selector: str = "") -> Any:
        yield Event("LIST", {"items": [self._found[kind]]})
        await asyncio.Event().wait()

    async def objects(self, api_version: str, kind: str, namespace: str) -> list[dict[str, Any]]:
        return [self._found[kind]]


async def _waited(tmp_path: Path, pod: dict[str, Any], *, within: float, **status: int) -> None:
    api = cast("Api", _FakeApi(_deployment(**status), pod))
    await wait_available(_cluster(tmp_path), api, "kueue-system", ["kueue-controller-manager"], within=within)


async def test_waiting_ends_with_the_deployment(tmp_path: Path) -> None:
    status = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": 1}

    async with asyncio.timeout(60):
        await _waited(tmp_path, _pod(), within=60, **status)


async def test_a_pod_that_cannot_start_ends_the_waiting_at_once_and_its_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "node" / "pods" / "kueue-system_kueue-x_u1" / "manager" / "0.log"
    log.parent.mkdir(parents=True)
    log.write_text("panic\n")

    async with asyncio.timeout(60):
        with pytest.raises(ClusterError, match="kueue-system/kueue-x ended 4 times") as raised:
            await _waited(tmp_path, _pod("CrashLoopBackOff", restarts=4), within=60)

    assert raised.value.log == log


async def test_a_deployment_that_is_late_is_reported_with_what_its_pods_do(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="kueue-system did not become available: kueue-x is Pending"):
        await _waited(tmp_path, _pod(), within=0.05)


# --- charts


async def test_a_chart_is_written_once_for_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[dict[str, Any]] = []

    async def run(*command: object, stdin: bytes, **_: object) -> str:
        runs.append(json.loads(stdin))
        return ""

    class Namespaces:
        def __init__(self) -> None:
            self.annotations: dict[str, str] = {}

        async def apply(self, body: dict[str, Any], **_: object) -> dict[str, Any]:
            return {"metadata": {"annotations": dict(self.annotations)}}

        async def patch(self, api_version: str, kind: str, name: str, patch: dict[str, Any]) -> None:
            self.annotations |= patch["metadata"]["annotations"]

    monkeypatch.setattr(charts, "run", run)
    (tmp_path / "bin").mkdir()
    place = SimpleNamespace(root=tmp_path, logs=tmp_path / "logs")
    cluster = cast("Cluster", SimpleNamespace(place=place, kubeconfig=tmp_path / "kubeconfig"))
    helm = Binaries(TOOLS, {"helm": tmp_path})
    api = cast("Api", Namespaces())

    async def install(**values: int) -> bool:
        return await charts.Release("kueue", "kueue-system", tmp_path, values).install(cluster, api, helm)

    assert [await install(a=1), await install(a=1), await install(a=2), await install(a=1)] == [True, False, True, True]
    assert runs == [{"a": 1}, {"a": 2}, {"a": 1}]
    assert (tmp_path / "bin" / "helm").is_symlink()


def _with_program(binaries: Binaries, tool: str) -> Binaries:
    program = binaries.folders[tool] / "bin" / tool
    program.parent.mkdir(exist_ok=True)
    program.write_bytes(b"")
    return binaries
