"""Installs on the agent's node, and uninstalls. Idempotent: changes only what differs from the wanted state.

1. Our programs are written to a folder of their own version, and tested there.
2. containerd's configuration gets our runtime handler, and is validated (`containerd config dump`) before it is used;
   if containerd rejects it, or does not restart with it, the previous configuration is restored.
3. containerd is restarted, only if its configuration has changed. Pods run on.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog
import tenacity

from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.node.installation.containerd_files import Change, ContainerdFiles
from cedana_sched.cluster.node.installation.containerd_process import ContainerdProcess, find_containerd, restart
from cedana_sched.cluster.node.installation.host import Host, HostError
from cedana_sched.cluster.node.installation.programs import GZIP, Programs
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.retrying import AWAITED
from cedana_sched.runtime_handler.atomic_write import write_atomically
from cedana_sched.snapshot.criu_toolchain import Toolchain

log = structlog.get_logger(__name__)

ABSENT_SECONDS = 60.0
"""How long to wait for a containerd that is being restarted, or starting at a boot."""

_RUNC_VERSION = re.compile(r"^runc version (\S{1,64})$", re.MULTILINE)
"""As printed by runc (`main.go`), and by programs that wrap it, such as NVIDIA's runtime."""


@dataclass(frozen=True)
class InstallationPaths:
    """Paths of the installation, as the host sees them."""

    socket: Path = Path("/run/containerd/containerd.sock")
    configuration: Path = Path("/etc/containerd/config.toml")
    programs: Path = Path("/opt/cedana-sched")
    state: Path = Path("/run/cedana-sched")
    bundles: Path = Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io")
    restarts: bool = True
    """Whether containerd may be restarted."""

    @classmethod
    def from_configuration(cls, configuration: AgentConfiguration) -> InstallationPaths:
        """Read the paths from the agent's configuration."""
        return cls(
            socket=configuration.containerd_socket,
            configuration=configuration.containerd_configuration,
            programs=configuration.programs,
            state=configuration.state,
            restarts=configuration.restart_containerd,
        )


@dataclass(frozen=True)
class InstallationResult:
    """The result of an installation."""

    toolchain: Toolchain
    """Its programs as the host sees them; pycriu as the agent does."""
    is_active: bool
    """Whether containerd has loaded the handler; if not, it will at its next restart."""
    runc: str
    """Version of the host's runc; empty: unknown."""


class Installation:
    """Our installation on one node.

    Args:
        host: the node.
        site: paths on the host.
        wait_node_ready: returns when the kubelet reports the node as Ready.
    """

    def __init__(self, host: Host, site: InstallationPaths, wait_node_ready: Callable[[], Awaitable[None]]) -> None:
        self._host = host
        self._site = site
        self._wait_node_ready = wait_node_ready
        self._programs = Programs(site.programs, host.agent_path(site.programs), site.state)

    async def install(self, toolchain: Toolchain) -> InstallationResult:
        """Prepare the node for restores.

        Raises:
            HostError: it cannot be prepared, and nothing used by others has changed; names the cause and the remedy.
        """
        daemon = await self._find_containerd()
        files = await self._containerd_files()
        runc = await self._find_runc(files, daemon)
        version = await asyncio.to_thread(self._programs.write_version, toolchain, runc)
        runc_version = await self._try_programs(version)
        await asyncio.to_thread(self._programs.activate_version, version)
        changes = files.registration_changes(self._programs.handler)
        is_active = await self._apply_changes(changes, daemon)
        log.info("node prepared", programs=str(version), containerd_changed=bool(changes), active=is_active)
        criu = version / "criu"
        preload = criu / "preload.so" if toolchain.preload else None
        here = replace(
            toolchain,
            criu=criu / "bin/criu",
            nft=criu / "bin/nft",
            tini=criu / "bin/tini",
            preload=preload,
            gzip=version / GZIP,
        )
        return InstallationResult(here, is_active, runc_version)

    async def configuration_folders(self) -> list[Path]:
        """Return the folders of containerd's configuration, as the agent sees them.

        Raises:
            HostError: the configuration can no longer be parsed.
        """
        folders = (self._host.agent_path(folder) for folder in (await self._containerd_files()).folders)
        return [folder for folder in folders if folder.is_dir()]

    async def renew_registration(self) -> None:
        """Register the handler again, beside all changes that others have made since.

        Raises:
            HostError: see `install`.
        """
        daemon = await self._find_containerd()
        changes = (await self._containerd_files()).registration_changes(self._programs.handler)
        is_active = await self._apply_changes(changes, daemon)
        if changes:
            log.info("runtime handler registered anew", active=is_active)

    async def uninstall(self) -> None:
        """Remove everything but snapshots and logs.

        containerd is not restarted, since that could fail pods that are just starting: it drops the handler at its next
        start, and no new pod uses the handler.

        Containers that were started through our handler run on, and containerd calls the handler to stop them: as long
        as any runs, runc itself takes the handler's place.

        Raises:
            HostError: containerd's configuration can no longer be parsed.
        """
        daemon = await self._find_containerd()
        files = await self._containerd_files()
        runc = await self._find_runc(files, daemon)
        await self._write(files.removal_changes())
        await asyncio.to_thread(self._unread_mark_path.unlink, missing_ok=True)
        used = await asyncio.to_thread(self._is_handler_used)
        await asyncio.to_thread(self._programs.remove, runc if used else None)
        log.info("node cleared", still_used_by_containers=used)

    def _is_handler_used(self) -> bool:
        """Return whether a container was started through our handler, which its shim records beside the bundle."""
        known = self._host.agent_path(self._site.bundles).glob("*/runtime")
        return any(file.read_text().strip() == str(self._programs.handler) for file in known)

    async def _containerd_files(self) -> ContainerdFiles:
        return await asyncio.to_thread(ContainerdFiles, self._site.configuration, self._host.agent_path)

    async def _find_runc(self, files: ContainerdFiles, daemon: ContainerdProcess) -> Path:
        """Return the program that really runs containers, as the host sees it.

        Raises:
            HostError: there is none.
        """
        environment = {"PATH": daemon.search_path} if daemon.search_path else None
        try:
            found = await self._host.run("sh", "-c", 'command -v "$1"', "sh", files.runc, environment=environment)
        except HostError as error:
            raise HostError(
                f"{files.runc}, which containerd starts containers with, is not on this node", evidence=error.evidence
            ) from error
        return Path(found.strip())

    async def _try_programs(self, version: Path) -> str:
        """Start each program once, on the host; return the version of runc, which the handler calls.

        Raises:
            HostError: one does not run there.
        """
        output = await self._host.run(version / "bin/cedana-runtime", "--version")
        await self._host.run(version / "bin/cedana-runtime", "cedana-check")
        await self._host.run(version / "criu/bin/criu", "--version")
        found = _RUNC_VERSION.search(output)
        return found[1] if found else ""

    @tenacity.retry(
        wait=AWAITED,
        stop=tenacity.stop_before_delay(ABSENT_SECONDS),
        retry=tenacity.retry_if_exception_type(HostError),
        reraise=True,
    )
    async def _find_containerd(self) -> ContainerdProcess:
        """Return the listening containerd; waits for one that is being restarted.

        Raises:
            HostError: none listens in time.
        """
        return await asyncio.to_thread(find_containerd, self._site.socket)

    async def _apply_changes(self, changes: list[Change], daemon: ContainerdProcess) -> bool:
        """Write the configuration, and restart containerd; return whether containerd has loaded it.

        Raises:
            HostError: containerd rejects it; the previous configuration is restored.
        """
        if not changes and not await asyncio.to_thread(self._is_unread_by, daemon):
            return True
        before = [Change(change.path, await self._read(change.path)) for change in changes]
        await asyncio.to_thread(self._note_unread, daemon)  # first, for the successor of an agent killed now
        await self._write(changes)
        try:
            await self._host.run(daemon.command[0], "--config", self._site.configuration, "config", "dump")
            if self._site.restarts:
                await restart(daemon, self._host, self._site.socket)
        except CedanaSchedError:
            await self._write(before)
            if self._site.restarts and not await self._is_same_process(daemon):
                await restart(daemon, self._host, self._site.socket)
            await asyncio.to_thread(self._unread_mark_path.unlink, missing_ok=True)
            raise
        if not self._site.restarts:
            return False
        await asyncio.to_thread(self._unread_mark_path.unlink, missing_ok=True)
        await self._wait_node_ready()
        return True

    @property
    def _unread_mark_path(self) -> Path:
        """Holds the process id of the containerd that has not read our last change; gone after a reboot."""
        return self._host.agent_path(self._site.state) / "containerd-unread"

    def _note_unread(self, daemon: ContainerdProcess) -> None:
        self._unread_mark_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self._unread_mark_path, str(daemon.pid).encode())

    def _is_unread_by(self, daemon: ContainerdProcess) -> bool:
        return self._unread_mark_path.exists() and self._unread_mark_path.read_text() == str(daemon.pid)

    async def _is_same_process(self, daemon: ContainerdProcess) -> bool:
        """Return whether containerd is still the same process, which runs with the configuration read before."""
        try:
            return (await asyncio.to_thread(find_containerd, self._site.socket)).pid == daemon.pid
        except HostError:
            return False

    async def _read(self, path: Path) -> str | None:
        here = self._host.agent_path(path)
        return await asyncio.to_thread(here.read_text) if here.exists() else None

    async def _write(self, changes: list[Change]) -> None:
        for change in changes:
            await asyncio.to_thread(_replace, self._host.agent_path(change.path), change.content)


def _replace(path: Path, content: str | None) -> None:
    """Replace a file's content atomically; its owner and mode are kept."""
    if content is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.encode(), mode=0o644)
