"""kind's own reader, of the version in tests/cluster/tools/kind, compared with the test cluster's, file by file.

What the test cluster accepts, kind accepts and reads alike. So what kind refuses, the test cluster refuses.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.binaries.catalog import MODULES
from tests.cluster.binaries.go import find_go
from tests.cluster.kind_config.reading import parse
from tests.cluster.kind_config.refusal import RefusedFieldError
from tests.cluster.kind_config.shape import ClusterShape, NodeShape

ROOT: Final = Path(__file__).parents[3]
HEADER: Final = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n"
TESTDATA: Final = "pkg/internal/apis/config/encoding/testdata"
BOTH_READ: Final = (
    "",
    "name: a.b-c",
    "nodes:",
    "nodes: [{role: control-plane}, {role: worker, labels: {gpu: true, zone: 08}}]",
    "nodes: [{role: worker}, {role: control-plane, extraMounts: [{hostPath: /a, containerPath: /b, readOnly: true}]}]",
    "networking: {apiServerPort: -1}",
    "networking: {apiServerPort: 6443, podSubnet: 10.1.2.3/16, serviceSubnet: 10.9.0.0/24, kubeProxyMode: nftables}",
    "featureGates: {A: true, B: no}",
    "runtimeConfig: {api/alpha: 'true', b: false}",
    "nodes: [&a {role: control-plane}, {<<: *a, role: worker}]",
)
KIND_REFUSES: Final = (
    "name: Upper",
    "names: typo",
    "nodes: [{role: worker}]",
    "nodes: [{role: master}]",
    "nodes: {role: worker}",
    "networking: [a]",
    "networking: {apiServerPort: 65536}",
    "networking: {apiServerPort: http}",
    "networking: {podSubnet: 10.0.0.0/33}",
    "networking: {podSubnet: 'fd00::/56'}",
    "networking: {kubeProxyMode: NFTables}",
    "networking: {pod_subnet: 10.0.0.0/16}",
    "networking: {}\nnetworking: {}",
    "featureGates: {A: maybe}",
    "nodes: [{extraMounts: [{hostPath: /a, containerPath: /b, propagation: Shared}]}]",
    "nodes: [{extraMounts: [{hostPath: /a, containerPath: /b, readonly: true}]}]",
    "nodes: [",
)
Read = Callable[[list[str]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def sources() -> Path:
    """Kind's module, from Go's cache."""

    async def find() -> Path:
        return await (await find_go()).module_folder(MODULES / "kind", "sigs.k8s.io/kind")

    return asyncio.run(find())


@pytest.fixture(scope="module")
def read_with_kind(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Kind's reader, built."""
    folder = tmp_path_factory.mktemp("kind") / "module"
    shutil.copytree(sources, folder, copy_function=shutil.copyfile)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (folder / "pkg/read").mkdir()
    shutil.copyfile(Path(__file__).with_name("kind_reader.go"), folder / "pkg/read/main.go")
    go = asyncio.run(find_go())
    environment = {"CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}
    command = (go.program, "build", "-buildvcs=false", "-mod=readonly", "-o", folder / "read", "./pkg/read")
    subprocess.run(("env", *(f"{key}={value}" for key, value in environment.items()), *command), cwd=folder, check=True)

    def read(texts: list[str]) -> list[dict[str, Any]]:
        output = subprocess.run(folder / "read", input=json.dumps(texts).encode(), stdout=subprocess.PIPE, check=True)
        found: list[dict[str, Any]] = json.loads(output.stdout)
        return found

    return read


def read_here(text: str) -> ClusterShape | None:
    """What the test cluster makes of it; None if it refuses it."""
    try:
        return parse(text)
    except RefusedFieldError:
        return None


def assert_alike(shape: ClusterShape, cluster: dict[str, Any], text: str) -> None:
    networking = cluster["Networking"]
    assert (shape.name or "kind") == cluster["Name"]
    assert shape.pod_subnet == IPv4Network(networking["PodSubnet"], strict=False)
    assert shape.service_subnet == IPv4Network(networking["ServiceSubnet"], strict=False)
    assert (shape.api_server_port or 0) == max(networking["APIServerPort"], 0)
    assert (networking["IPFamily"], networking["APIServerAddress"]) == ("ipv4", "127.0.0.1")
    assert not networking["DisableDefaultCNI"]
    if "kubeProxyMode" in text:  # not written it is kind's iptables, and the test cluster's nftables
        assert shape.kube_proxy_mode == networking["KubeProxyMode"]
    assert shape.feature_gates == (cluster["FeatureGates"] or {})
    assert shape.runtime_config == (cluster["RuntimeConfig"] or {})
    assert len(shape.nodes) == len(cluster["Nodes"])
    for node, theirs in zip(shape.nodes, cluster["Nodes"], strict=True):
        assert_node_alike(node, theirs)


def assert_node_alike(node: NodeShape, theirs: dict[str, Any]) -> None:
    assert node.role == theirs["Role"]
    assert (theirs["Labels"] or {}).items() <= node.labels.items()
    mounts = [
        (Path(one["HostPath"]).absolute(), one["ContainerPath"], one["Readonly"]) for one in theirs["ExtraMounts"] or ()
    ]
    assert [(one.host_path, one.container_path, one.read_only) for one in node.mounts] == mounts
    assert not theirs["ExtraPortMappings"]


def test_files_of_this_repository_are_read_alike(read_with_kind: Read) -> None:
    paths = sorted((ROOT / "kind-configs").glob("*.yaml"))
    assert len(paths) >= 5
    texts = [path.read_text() for path in paths]
    for path, text, theirs in zip(paths, texts, read_with_kind(texts), strict=True):
        assert theirs["Refusal"] == "", path
        assert_alike(parse(text), theirs["Cluster"], text)


def test_kinds_own_files_are_read_alike_or_refused(read_with_kind: Read, sources: Path) -> None:
    texts = [path.read_text() for path in sorted((sources / TESTDATA).rglob("*.yaml"))]
    read = 0
    for text, theirs in zip(texts, read_with_kind(texts), strict=True):
        shape = read_here(text)
        if shape is not None:
            assert theirs["Refusal"] == "", text
            assert_alike(shape, theirs["Cluster"], text)
            read += 1
    assert read >= 2


def test_what_both_read_is_read_alike(read_with_kind: Read) -> None:
    texts = [HEADER + text for text in BOTH_READ]
    for text, theirs in zip(texts, read_with_kind(texts), strict=True):
        assert theirs["Refusal"] == "", text
        assert_alike(parse(text), theirs["Cluster"], text)


def test_what_kind_refuses_is_refused_here(read_with_kind: Read) -> None:
    texts = [HEADER + text for text in KIND_REFUSES]
    accepted = [
        text
        for text, theirs in zip(texts, read_with_kind(texts), strict=True)
        if not theirs["Refusal"] or read_here(text) is not None
    ]
    assert accepted == []
