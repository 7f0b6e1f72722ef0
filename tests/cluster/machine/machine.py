"""Starts, stops, pauses and enters one machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tenacity

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.machine import network, services
from tests.cluster.machine.cgroups import ControlGroup, remove_tree
from tests.cluster.machine.services import Service

_BOOT = Path(__file__).with_name("boot.py")
_SUPERVISOR = ("/usr/bin/runsvdir", "-P", f"/{services.DIRECTORY}")
_JOIN_GROUPS = 'for procs in $GROUPS_TO_JOIN; do echo $$ > "$procs" || exit; done; exec "$@"'


@dataclass(frozen=True)
class Bind:
    """A file or folder of this host, seen in the machine."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Specification:
    """What a machine is made of.

    Args:
        name: its host name.
        namespace: name of the network namespace that it runs in; must exist.
        group: its control group, below the cluster's.
        state: folder for all that it writes, on a file system that overlays can write to.
        lower: the Debian root below its writable layer.
        binds: what it sees of this host.
        files: text files of its own, by absolute path; scripts can be executed.
        pretended: text laid over files of /proc and /sys for each boot, by absolute path.
        pretended_trees: likewise for folders: text by relative path, by absolute folder.
        services: what runs in it.
    """

    name: str
    namespace: str
    group: str
    state: Path
    lower: Path
    logs: Path
    binds: Sequence[Bind] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    pretended: Mapping[str, str] = field(default_factory=dict)
    pretended_trees: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    services: Sequence[Service] = ()


class Machine:
    """One machine, running or not; its state is in its folder, so another process can take it over.

    Args:
        state: the machine's folder.
        name: its host name.
        group: path of its control group.
        logs: where its `/var/log` lies on this host.
    """

    def __init__(self, *, name: str, state: Path, group: str, logs: Path) -> None:
        self.name = name
        self.state = state
        self.logs = logs
        self.group = ControlGroup(group)

    @property
    def upper(self) -> Path:
        """Its writable layer, as this host sees it."""
        return self.state / "upper"

    def log(self, service: str) -> Path:
        """Where a service's log lies on this host."""
        return self.logs / f"{service}.log"

    async def start(self, specification: Specification) -> None:
        """Boot it; what it wrote earlier is still there.

        Raises:
            ClusterError: its init did not come up.
        """
        self._prepare(specification)
        boot_log = self.logs / "boot.log"
        with boot_log.open("wb") as log:
            launcher = await asyncio.create_subprocess_exec(
                *("sh", "-c", _JOIN_GROUPS, "join"),
                *("nsenter", f"--net={network.NAMESPACES / specification.namespace}"),
                *("unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--cgroup", "--propagation", "private"),
                *("python3", "-I", str(_BOOT), str(self.state / "boot.json")),
                env={
                    "PATH": os.environ["PATH"],
                    "GROUPS_TO_JOIN": " ".join(str(folder / "cgroup.procs") for folder in self.group.folders()),
                },
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            await self._wait_for_supervisor(launcher, boot_log)
        except BaseException:
            self.kill()
            await launcher.wait()
            raise

    def _prepare(self, specification: Specification) -> None:
        self.group.create()
        self.upper.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        for service in specification.services:
            folder = self.upper / services.DIRECTORY / service.name
            remove_tree(folder / "supervise")  # of an earlier boot
            services.write(self.upper, service)
            services.forget_deaths(self.logs, service.name)
        for path, text in specification.files.items():
            target = self.upper / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            if text.startswith("#!"):
                target.chmod(0o755)
        binds = (*specification.binds, Bind(self.logs, services.LOGS))
        (self.state / "boot.json").write_text(
            json.dumps(
                {
                    "hostname": specification.name,
                    "lower": str(specification.lower),
                    "state": str(self.state),
                    "mounts": [[str(bind.source), bind.target, bind.read_only] for bind in binds],
                    "files": dict(specification.pretended),
                    "trees": {folder: dict(tree) for folder, tree in specification.pretended_trees.items()},
                    "arguments": list(_SUPERVISOR),
                }
            )
        )

    async def _wait_for_supervisor(self, launcher: asyncio.subprocess.Process, boot_log: Path) -> None:
        async for attempt in tenacity.AsyncRetrying(
            wait=tenacity.wait_fixed(0.02), stop=tenacity.stop_after_delay(20), reraise=True
        ):
            with attempt:
                if launcher.returncode is not None:
                    break
                self._pid = self._find_init(launcher.pid)
        if launcher.returncode is not None:
            last = boot_log.read_text(errors="replace").strip().rsplit("\n", 1)[-1]
            raise ClusterError(f"{self.name} did not boot: {last}", log=boot_log, remedy="see its log")
        (self.state / "init.pid").write_text(str(self._pid))

    def _find_init(self, launcher: int) -> int:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "tini":
                return int(child)
        raise ClusterError(f"{self.name} has no init yet", remedy="wait")

    def pid(self) -> int | None:
        """Its first process as this host numbers it; None when it is off."""
        try:
            pid = int((self.state / "init.pid").read_text())
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return pid if pid in self.group.processes() and "\nNSpid:" in status else None

    def kill(self) -> None:
        """A power cut: nothing gets to say a word."""
        if (pid := self.pid()) is not None:
            self.group.thaw()
            os.kill(pid, signal.SIGKILL)
        self.group.end()
        (self.state / "init.pid").unlink(missing_ok=True)

    def pause(self) -> None:
        """Stop every process of it, pods included."""
        self.group.freeze()

    def resume(self) -> None:
        self.group.thaw()

    def entered(self, *command: str | Path) -> tuple[str, ...]:
        """A command line that runs a program in the machine, from this host.

        Raises:
            ClusterError: the machine is off.
        """
        pid = self.pid()
        if pid is None:
            raise ClusterError(f"{self.name} is off", log=self.logs / "boot.log", remedy="start it first")
        namespaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        return ("nsenter", "--target", str(pid), *namespaces, "--", "/usr/bin/env", *_ENVIRONMENT, *map(str, command))

    async def run(self, *command: str | Path, stdin: bytes | None = None) -> str:
        """Run a program in the machine to its end and return what it printed."""
        return await run(
            *self.entered(*command),
            stdin=stdin,
            what=f"{command[0]} on {self.name} failed",
            remedy=f"see the logs in {self.logs}",
        )

    async def start_service(self, name: str) -> None:
        services.forget_deaths(self.logs, name)
        await self.run("sv", "up", f"/{services.DIRECTORY}/{name}")

    async def stop_service(self, name: str) -> None:
        """Ask it to end, and wait until it has."""
        await self.run("sv", "-w", "30", "down", f"/{services.DIRECTORY}/{name}")

    async def restart_service(self, name: str) -> None:
        await self.run("sv", "-w", "30", "restart", f"/{services.DIRECTORY}/{name}")
        services.forget_deaths(self.logs, name)

    def check_alive(self, names: Iterable[str]) -> None:
        """Whether none of these services has died.

        Raises:
            ClusterError: one has; its log's last line tells why.
        """
        for name in names:
            if services.deaths(self.logs, name):
                lines = self.log(name).read_text(errors="replace").strip().splitlines()
                said = next((line for line in reversed(lines) if not line.startswith("ended with status")), "nothing")
                raise ClusterError(
                    f"{name} on {self.name} died while starting: {said}", log=self.log(name), remedy="see its log"
                )

    def forget(self) -> None:
        """Delete all that it wrote, but its logs."""
        shutil.rmtree(self.state, ignore_errors=False)


_ENVIRONMENT = (
    "-i",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LC_ALL=C.UTF-8",
)
