"""Installing on a host that is a folder: what is written, what is taken back, and when containerd is restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
import tenacity

from cedana_sched.cluster.node.installation import installation as module
from cedana_sched.cluster.node.installation.containerd_process import ContainerdProcess
from cedana_sched.cluster.node.installation.handler_registration import keep_registered
from cedana_sched.cluster.node.installation.host import Host, HostError
from cedana_sched.cluster.node.installation.installation import Installation, InstallationPaths
from cedana_sched.snapshot.criu_toolchain import Toolchain

CONFIGURATION = 'version = 2\nroot = "/var/lib/containerd"\n'


class FolderHost(Host):
    """Remembers what it was asked to run."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[str] = []
        self.refuses = "nothing"
        self.runc_says = "runc version 1.3.3\ncommit: v1.3.3-0-gd842d771\nspec: 1.2.1\ngo: go1.24.9\n"

    async def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> str:
        said = " ".join(map(str, command))
        self.commands.append(said)
        if self.refuses in said:
            raise HostError(f"refused: {self.refuses}")
        if "cedana-runtime --version" in said:
            return self.runc_says
        return "/usr/sbin/runc\n" if "command -v" in said else ""


class Node:
    """A node with a containerd."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.host = FolderHost(folder / "host")
        self.file = self.host.agent_path(Path("/etc/containerd/config.toml"))
        self.file.parent.mkdir(parents=True)
        self.file.write_text(CONFIGURATION)
        self.daemon = ContainerdProcess(100, ("/usr/bin/containerd",), "/usr/bin")
        self.restarts: list[str] = []
        """What containerd read, each time."""
        self.rejects = "nothing"
        self.waits = 0
        criu = folder / "criu-4.2.1"
        for name in ("bin/criu", "bin/nft", "bin/tini", "toolchain.json"):
            (criu / name).parent.mkdir(parents=True, exist_ok=True)
            (criu / name).write_text(name)
        self.toolchain = Toolchain("4.2.1", criu / "bin/criu", criu / "bin/tini", criu / "bin/nft", criu / "python")
        patch.setattr(module, "find_containerd", lambda socket: self.daemon)
        patch.setattr(module, "restart", self._restart)

    def installation(self, *, restarts: bool = True) -> Installation:
        return Installation(self.host, InstallationPaths(restarts=restarts), self._ready)

    async def _ready(self) -> None:
        self.waits += 1

    async def _restart(self, daemon: ContainerdProcess, host: Host, socket: Path) -> None:
        self.restarts.append(self.file.read_text())
        self.daemon = ContainerdProcess(self.daemon.pid + 1, daemon.command, daemon.search_path)
        if self.rejects in self.restarts[-1]:
            raise HostError("containerd does not take calls")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


async def test_it_installs_once_and_takes_all_of_it_back(node: Node) -> None:
    installed = await node.installation().install(node.toolchain)
    assert installed.is_active
    assert installed.toolchain.criu.is_relative_to("/opt/cedana-sched/versions")
    assert node.host.agent_path(installed.toolchain.criu).read_text() == "bin/criu"
    launcher = node.host.agent_path(Path("/opt/cedana-sched/bin/cedana-runtime")).read_text()
    assert "runc=/usr/sbin/runc" in launcher
    assert "@" not in launcher.replace('"$@"', "")
    assert "cedana" in node.file.read_text()
    assert (len(node.restarts), node.waits) == (1, 1)

    assert await node.installation().install(node.toolchain) == installed
    assert len(node.restarts) == 1, "nothing had changed"

    await node.installation().uninstall()
    assert node.file.read_text() == CONFIGURATION
    assert not node.host.agent_path(Path("/opt/cedana-sched")).exists()
    assert len(node.restarts) == 1, "it forgets us when it starts next"


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ("runc version 1.2.8-0ubuntu1\nspec: 1.2.0\n", "1.2.8-0ubuntu1"),
        (
            "NVIDIA Container Runtime version 1.17.8\ncommit: f202b80\n\nrunc version 1.1.15\nspec: 1.0.2-dev\n",
            "1.1.15",
        ),
        ("crun version 1.21\n", ""),
        ("", ""),
    ],
)
async def test_it_says_which_runc_is_there(node: Node, says: str, version: str) -> None:
    node.host.runc_says = says
    assert (await node.installation().install(node.toolchain)).runc == version


DROP_INS = 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
OTHERS = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
"""


async def test_handlers_that_others_add_later_are_not_lost_behind_ours(node: Node) -> None:
    node.file.write_text(DROP_INS)
    folder = node.host.agent_path(Path("/etc/containerd/conf.d"))
    folder.mkdir()
    installation = node.installation()
    await installation.install(node.toolchain)
    (ours,) = folder.iterdir()
    assert set(await installation.configuration_folders()) == {node.file.parent, folder}

    keeping = asyncio.create_task(keep_registered(installation, quiet_seconds=0.01))
    try:
        async with asyncio.timeout(60):
            while not (folder / "gpu.toml").exists() or "nvidia" not in ours.read_text():
                (folder / "gpu.toml").write_text(OTHERS)  # again, should nobody have watched yet
                await asyncio.sleep(0.05)
        assert "cedana" in ours.read_text()
        node.file.write_text("no toml at all [")
        (folder / "gpu.toml").unlink()
        await asyncio.sleep(0.1)
        assert not keeping.done(), "who has broken it may mend it"
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def test_containers_of_our_handler_can_still_be_stopped_when_it_is_gone(node: Node) -> None:
    await node.installation().install(node.toolchain)
    bundle = node.host.agent_path(InstallationPaths().bundles) / "c1"
    bundle.mkdir(parents=True)
    (bundle / "runtime").write_text("/opt/cedana-sched/bin/cedana-runtime")
    await node.installation().uninstall()
    handler = node.host.agent_path(Path("/opt/cedana-sched/bin/cedana-runtime"))
    assert handler.readlink() == Path("/usr/sbin/runc")
    assert sum(1 for path in handler.parents[1].rglob("*") if not path.is_dir()) <= 2, "nothing else is left"

    await node.installation().install(node.toolchain)
    assert not handler.is_symlink()
    (bundle / "runtime").unlink()
    await node.installation().uninstall()
    assert not handler.parents[1].exists()


@pytest.mark.parametrize("refuses", ["cedana-check", "criu --version", "cedana-runtime --version"])
async def test_a_host_on_which_our_programs_do_not_run_is_left_as_it_was(node: Node, refuses: str) -> None:
    node.host.refuses = refuses
    with pytest.raises(HostError, match="refused"):
        await node.installation().install(node.toolchain)
    assert node.file.read_text() == CONFIGURATION
    assert node.restarts == []
    assert not node.host.agent_path(Path("/opt/cedana-sched/bin")).exists()


async def test_a_configuration_that_containerd_refuses_is_taken_back(node: Node) -> None:
    node.host.refuses = "config dump"
    with pytest.raises(HostError, match="refused"):
        await node.installation().install(node.toolchain)
    assert node.file.read_text() == CONFIGURATION
    assert node.restarts == [], "it runs on with what it had read"


async def test_a_containerd_that_does_not_come_back_gets_what_it_had(node: Node) -> None:
    node.rejects = "cedana"
    with pytest.raises(HostError, match="does not take calls"):
        await node.installation().install(node.toolchain)
    assert node.file.read_text() == CONFIGURATION
    assert node.restarts[1:] == [CONFIGURATION]


async def test_where_nobody_may_restart_it_the_node_is_not_ready_before_somebody_did(node: Node) -> None:
    for _ in range(2):
        installed = await node.installation(restarts=False).install(node.toolchain)
        assert not installed.is_active
    assert node.restarts == []
    node.daemon = ContainerdProcess(200, node.daemon.command, node.daemon.search_path)
    assert (await node.installation(restarts=False).install(node.toolchain)).is_active


async def test_an_agent_that_died_before_the_restart_restarts_containerd_next_time(node: Node) -> None:
    await node.installation(restarts=False).install(node.toolchain)
    assert (await node.installation().install(node.toolchain)).is_active
    assert len(node.restarts) == 1
    await node.installation().install(node.toolchain)
    assert len(node.restarts) == 1


async def test_a_new_version_leaves_the_one_before(node: Node) -> None:
    versions = node.host.agent_path(Path("/opt/cedana-sched/versions"))
    for number in range(3):
        node.toolchain.criu.write_text(f"build {number}")
        installed = await node.installation().install(node.toolchain)
        assert node.host.agent_path(installed.toolchain.criu).read_text() == f"build {number}"
    kept = {(version / "criu/bin/criu").read_text() for version in versions.iterdir()}
    assert kept == {"build 1", "build 2"}
    assert len(node.restarts) == 1, "containerd's configuration names no version"


async def test_a_damaged_version_is_laid_again(node: Node) -> None:
    installed = await node.installation().install(node.toolchain)
    node.host.agent_path(installed.toolchain.criu).write_text("")
    await node.installation().install(node.toolchain)
    assert node.host.agent_path(installed.toolchain.criu).read_text() == "bin/criu"


async def test_a_containerd_that_is_just_restarted_by_somebody_is_waited_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    absences = [HostError("no containerd listens")] * 2

    def find(_: Path) -> ContainerdProcess:
        if absences:
            raise absences.pop()
        return node.daemon

    monkeypatch.setattr(module, "find_containerd", find)
    assert (await node.installation().install(node.toolchain)).is_active
    assert not absences


async def test_a_containerd_that_does_not_come_is_named(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_: Path) -> ContainerdProcess:
        raise HostError("no containerd listens")

    monkeypatch.setattr(module, "find_containerd", find)
    monkeypatch.setattr(Installation._find_containerd.retry, "stop", tenacity.stop_after_attempt(2))
    with pytest.raises(HostError, match="no containerd listens"):
        await node.installation().install(node.toolchain)
