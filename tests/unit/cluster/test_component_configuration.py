"""Components read the files that the chart writes, and say which field of a wrong one is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cedana_sched.cluster.configuration import AgentConfiguration, CoordinatorConfiguration
from cedana_sched.cluster.prestop_proxy.configuration import PreStopProxyConfiguration
from cedana_sched.component.configuration import load
from cedana_sched.model.errors import UsageError
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.store_presence import NOTES

VALUES = Path(__file__).parents[3] / "manifests/chart/values.yaml"
STORAGE = {"s3": {"bucket": "lab", "endpoint": "http://s3.example:7070", "allowHttp": True}}


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "component.json"
    path.write_text(json.dumps(content))
    return path


def test_a_file_says_what_differs_from_the_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, {"namespace": "cedana-system", "lease": {"renewEvery": 1}})
    monkeypatch.setenv("CEDANA_SCHED_CONFIGURATION", str(path))
    configuration, _ = load(CoordinatorConfiguration)
    assert (configuration.lease.timing().renew_every, configuration.lease.timing().duration) == (1, 15)


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ({"namespace": "n", "lease": {"renewEvery": 20}}, "lease"),
        ({"adapters": ["kueue"]}, "namespace"),
        ({"namespace": "n", "log": {"level": "loud"}}, "log.level"),
        ({"namespace": "n", "operationsPort": 70_000}, "operationsPort"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, content: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(CoordinatorConfiguration, written(tmp_path, content))
    assert caught.value.field == field
    assert "component.json" in caught.value.remedy


def test_settings_of_a_newer_chart_are_passed_over_and_named(tmp_path: Path) -> None:
    """While a release is upgraded, and where an older image is pinned, the file is newer than who reads it."""
    content = {
        "namespace": "n",
        "futureLimit": 4,
        "log": {"level": "debug", "colours": True},
        "storage": {"s3": {**STORAGE["s3"], "storageClass": "cold"}},
        "stallSeconds": 45,
    }
    configuration, unknown = load(AgentConfiguration, written(tmp_path, content))
    assert set(unknown) == {"futureLimit", "log.colours", "storage.s3.storageClass"}
    assert (configuration.stall_seconds, configuration.log.level) == (45, "debug")
    assert configuration.storage.s3 is not None
    assert configuration.storage.s3.bucket == "lab"


def test_beside_a_newer_setting_a_wrong_one_is_still_named(tmp_path: Path) -> None:
    content = {"namespace": "n", "futureLimit": 4, "lease": {"renewEvery": 20, "future": 1}}
    with pytest.raises(UsageError) as caught:
        load(CoordinatorConfiguration, written(tmp_path, content))
    assert (caught.value.field, "renewEvery must be less" in caught.value.remedy) == ("lease", True)


def test_an_agent_needs_a_store_and_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="storage"):
        load(AgentConfiguration, written(tmp_path, {"namespace": "n"}))
    agent, _ = load(AgentConfiguration, written(tmp_path, {"namespace": "n", "storage": STORAGE}))
    assert agent.hold_socket == PreStopProxyConfiguration(namespace="n").socket
    monkeypatch.delenv("NODE_NAME", raising=False)
    with pytest.raises(UsageError, match="NODE_NAME"):
        AgentConfiguration.node_name()


@pytest.mark.parametrize(
    ("storage", "field"),
    [
        ({**STORAGE, "path": "/data"}, "storage"),
        ({"s3": {"bucket": "lab", "endpoint": "http://s3.example"}}, "storage.s3"),
    ],
)
def test_a_wrong_store_of_an_agent_is_named(tmp_path: Path, storage: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(AgentConfiguration, written(tmp_path, {"namespace": "n", "storage": storage}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("stallSeconds", 0), ("stallSeconds", 4000), ("stallSeconds", "long"), ("stagingReserve", 1), ("cacheBytes", -1)],
)
def test_an_agents_wrong_bound_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        load(AgentConfiguration, written(tmp_path, {"namespace": "n", "storage": STORAGE, field: value}))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254",
        "http://169.254.169.254/latest",
        "http://user@169.254.169.254",
        "http://[2001:db8::1]",
        "http://metadata.example.com",
        "http://169.254.169.254:99999",
        "http://[fd00::1]",
        "ftp://127.0.0.1",
        "127.0.0.1",
    ],
)
def test_a_metadata_server_elsewhere_is_refused(tmp_path: Path, url: str) -> None:
    """Each node sends its requests there, in the clear."""
    content = {"namespace": "n", "storage": STORAGE, "interruptions": {"provider": "aws", "metadataUrl": url}}
    with pytest.raises(UsageError, match="link-local") as caught:
        load(AgentConfiguration, written(tmp_path, content))
    assert (caught.value.field, caught.value.value) == ("interruptions.metadataUrl", url)


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:4711", "http://169.254.169.254/", "http://[fd00:ec2::254]"])
def test_an_address_of_a_metadata_server_is_taken(tmp_path: Path, url: str) -> None:
    content = {"namespace": "n", "storage": STORAGE, "interruptions": {"provider": "auto", "metadataUrl": url}}
    configuration, _ = load(AgentConfiguration, written(tmp_path, content))
    assert (configuration.interruptions.provider, configuration.interruptions.metadata_url) == ("auto", url)


def test_an_agents_bounds_are_taken(tmp_path: Path) -> None:
    content = {"namespace": "n", "storage": STORAGE, "stallSeconds": 45, "stagingReserve": None}
    configuration, _ = load(AgentConfiguration, written(tmp_path, content))
    assert (configuration.stall_seconds, configuration.staging_reserve) == (45, None)


def test_the_charts_defaults_are_ours() -> None:
    values = yaml.safe_load(VALUES.read_text())
    agent = AgentConfiguration(namespace="n", storage=StorageConfig(path=Path("/snapshots")))
    ours = agent.model_dump(by_alias=True)
    for field in (
        "cacheBytes",
        "stagingReserve",
        "dumps",
        "stallSeconds",
        "operationsPort",
        "restartContainerd",
    ):
        assert values["agent"][field] == ours[field], field
    assert {**values["agent"]["interruptions"], "nodeShutdown": values["kubernetes"]["enabled"]} == ours[
        "interruptions"
    ]
    holds = PreStopProxyConfiguration(namespace="n")
    assert (values["agent"]["holdPort"], values["agent"]["holdAwaySeconds"]) == (holds.port, holds.agent_away_seconds)
    lease = CoordinatorConfiguration(namespace="n").lease.model_dump(by_alias=True)
    assert values["coordinator"]["lease"] == lease


def test_the_defaults_of_the_page() -> None:
    agent = AgentConfiguration(namespace="n", storage=StorageConfig(path=Path("/snapshots")))
    assert (agent.stall_seconds, agent.cache_bytes, agent.dumps.at_once) == (30, 2 << 30, 4)
    assert agent.data / NOTES == Path("/var/lib/cedana-sched/stores")
    assert (agent.operations_port, CoordinatorConfiguration(namespace="n").operations_port) == (10351, 8081)
    assert CoordinatorConfiguration(namespace="n").lease.duration == 15


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEDANA_SCHED_CONFIGURATION", raising=False)
    with pytest.raises(UsageError, match="names no file"):
        load(AgentConfiguration)
    with pytest.raises(UsageError, match=r"absent\.json"):
        load(AgentConfiguration, tmp_path / "absent.json")
