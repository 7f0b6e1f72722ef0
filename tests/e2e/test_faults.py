"""Clusters that do not come up, that are killed on their way, and that stand side by side; and what they leave."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster import lifetime
from tests.cluster.api.waiting import wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.machine import cgroups
from tests.cluster.place import home
from tests.cluster.steps import Steps
from tests.processes import all_processes, is_alive

pytestmark = pytest.mark.any_shape

_HEADER = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n"
_CAPABLE = """\
nodes:
  - role: control-plane
    labels: {test-cluster/cpu: "3", test-cluster/memory: 2Gi, test-cluster/example.com_dongle: "4"}
"""
_DIES = {
    "kube-apiserver": "kind: ClusterConfiguration\napiServer: {extraArgs: {no-such-argument: '1'}}",
    "kube-scheduler": "kind: ClusterConfiguration\nscheduler: {extraArgs: {no-such-argument: '1'}}",
    "kubelet": "kind: KubeletConfiguration\nmaxPods: -7",
}
_SAYS = {"kube-apiserver": "no-such-argument", "kube-scheduler": "no-such-argument", "kubelet": "maxPods"}


def _traces(name: str) -> set[str]:
    """Everything of this machine that a cluster of this name has, or had: as words to be read in a failed test."""
    group = cgroups.ControlGroup(f"test-clusters/{name}")
    pids = {process.pid for process in all_processes()}
    processes = {f"process {pid}" for pid in pids if group.holds(pid) and is_alive(pid)}
    groups = {str(folder) for folder in group.folders() if folder.exists()}
    namespaces = {str(path) for path in Path("/run/netns").glob(f"tc-{name}*")}
    files = {str(path) for path in home().iterdir() if path.name in (name, f".{name}.lock", f"{name}.logs")}
    mounts = {line for line in Path("/proc/self/mounts").read_text().splitlines() if f"/{name}/" in line}
    return processes | groups | namespaces | files | mounts | _ownerless_links()


def _ownerless_links() -> set[str]:
    """This machine's ends of cables to clusters that are no more."""
    links = {path.name for path in Path("/sys/class/net").iterdir() if re.fullmatch(r"tc\d+", path.name)}
    return links - {f"tc{slot.read_text()}" for slot in home().glob("*/slot")}


@pytest.fixture
def kind_file(tmp_path: Path) -> Path:
    return tmp_path / "kind.yaml"


@pytest.fixture
def name() -> Iterator[str]:
    """Of a cluster beside the session's own, taken down whatever becomes of it."""
    name = f"fault-{os.getpid()}"
    yield name
    asyncio.run(lifetime.take_down(name))


@pytest.mark.parametrize(
    "component", [pytest.param(one, marks=() if one == "kubelet" else pytest.mark.exhaustive) for one in _DIES]
)
async def test_component_that_dies_is_named_at_once_with_its_last_words(
    component: str, kind_file: Path, name: str
) -> None:
    patch = _DIES[component].replace("\n", "\n    ")
    kind_file.write_text(f"{_HEADER}kubeadmConfigPatches:\n  - |\n    {patch}\n")

    with pytest.raises(ClusterError, match=f"^{component} on .* has died: .*{_SAYS[component]}") as error:
        await Cluster.up(kind_file, name, Steps(sys.__stderr__))

    assert "\n" not in str(error.value)
    assert error.value.log is not None
    assert _SAYS[component] in error.value.log.read_text()
    assert _traces(name) == {str(home() / f"{name}.logs")}


@asynccontextmanager
async def _coming_up(name: str, kind_file: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program that brings a cluster up and has got as far as booting its machines."""
    kind_file.write_text(_HEADER)
    program = await asyncio.create_subprocess_exec(
        *("env", "--default-signal=INT", sys.executable, "-m", "tests.cluster", "up"),  # ignored in the background
        env={**os.environ, "CLUSTER_NAME": name, "KIND_CONFIG": str(kind_file)},
        stderr=asyncio.subprocess.PIPE,
    )
    assert program.stderr is not None
    try:
        async for line in program.stderr:
            if b"API server ready" in line:
                yield program
                return
        raise AssertionError("it ended and never said that the API server was ready")
    finally:
        with suppress(ProcessLookupError):
            program.kill()
        await program.communicate()


async def test_killed_bring_up_is_cleared_away_by_the_next(kind_file: Path, name: str) -> None:
    async with _coming_up(name, kind_file):
        """It is killed on the way out."""
    assert _traces(name)

    cluster = await Cluster.up(kind_file, name, Steps(sys.__stderr__))

    async with cluster.api() as api:
        assert len(await api.objects("v1", "Node")) == 1


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM])
async def test_stopped_bring_up_leaves_its_logs_alone(number: signal.Signals, kind_file: Path, name: str) -> None:
    async with _coming_up(name, kind_file) as program:
        program.send_signal(number)
        _, said = await program.communicate()

    assert said.decode().splitlines()[-1] == "cluster: stopped; nothing half-started is left"
    assert _traces(name) == {str(home() / f"{name}.logs")}


@pytest.mark.exhaustive  # beside Armada there are two each time
async def test_two_clusters_of_the_same_networks_stand_side_by_side(
    cluster: Cluster, kind_file: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind_file.write_text(_HEADER + _CAPABLE)

    other = await Cluster.up(kind_file, name, Steps(sys.__stderr__))
    [first] = other.nodes.values()
    second = await other.add_node()
    await first.restart("kubelet")

    assert {node.address for node in other.nodes.values()} & {node.address for node in cluster.nodes.values()}
    async with other.api() as api, cluster.api() as our_api:
        assert {node["metadata"]["name"] for node in await api.objects("v1", "Node")} == {first.name, second.name}
        assert first.name not in {node["metadata"]["name"] for node in await our_api.objects("v1", "Node")}
        body = await wait_for(api, "v1", "Node", first.name, first.is_ready)
        said = {resource: body["status"]["allocatable"][resource] for resource in ("cpu", "example.com/dongle")}
        assert said == {"cpu": "3", "example.com/dongle": "4"}
        assert body["status"]["capacity"]["memory"] == "2Gi"

    began = time.monotonic()
    assert await lifetime.take_down(name)
    with capsys.disabled():
        print(f"\n[cluster down: {time.monotonic() - began:.1f} s]")
    assert _traces(name) == set()
