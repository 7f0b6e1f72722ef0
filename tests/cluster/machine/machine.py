"""Starts, stops, pauses and enters one machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import tenacity
from asyncinotify import Inotify, Mask

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.machine import network, services
from tests.cluster.machine.cgroups import ControlGroup
from tests.cluster.machine.services import Service

T = TypeVar("T")

_BOOT = Path(__file__).with_name("boot.py")
_SUPERVISOR = ("/usr/bin/runsvdir", "-P", f"/{services.DIRECTORY}")
_JOIN = 'for door in {}; do echo $$ > "$door" || exit; done'
_LAUNCH = f"""
{_JOIN.format("$GROUP")}
unshare --cgroup sh -c '{_JOIN.format("$LEAF")}; exec "$@"' enter "$@" &
"""
"""The control group namespace begins in the group itself, also where its processes belong into a leaf of it."""
_BOOTS_WITHIN = 30


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
            ClusterError: its init did not come up, or it is on.
        """
        if self.pid() is not None:
            raise ClusterError(f"{self.name} is on", remedy="kill it first")
        self._prepare(specification)
        boot_log = self.logs / "boot.log"
        try:
            with boot_log.open("wb") as log:
                launcher = await asyncio.create_subprocess_exec(
                    *("sh", "-c", _LAUNCH, "launch"),
                    *("nsenter", f"--net={network.NAMESPACES / specification.namespace}"),
                    *("unshare", "--pid", "--fork", "--mount", "--uts", "--ipc", "--propagation", "private"),
                    *(sys.executable, "-I", str(_BOOT), str(self.state / "boot.json")),
                    env={
                        "PATH": os.environ["PATH"],
                        "GROUP": " ".join(map(str, self.group.doors())),
                        "LEAF": " ".join(map(str, self.group.leaf_doors())),
                    },
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                await launcher.wait()
            pid = await self._supervised(specification, boot_log)
            (self.state / "init.pid").write_text(str(pid))
        except BaseException:
            self.kill()
            raise

    def _prepare(self, specification: Specification) -> None:
        self.group.end()  # of a machine whose init has died
        self.group.create()
        self.upper.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        services.prepare(self.upper, self.logs, specification.services)
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

    async def _supervised(self, specification: Specification, boot_log: Path) -> int:
        """Wait until its init supervises all services, and return its number on this host."""
        async for attempt in tenacity.AsyncRetrying(
            wait=tenacity.wait_fixed(0.02),
            stop=tenacity.stop_after_delay(_BOOTS_WITHIN),
            retry=tenacity.retry_if_exception_type(_StillBootingError),
            retry_error_callback=lambda _: None,
        ):
            with attempt:
                first = [pid for pid in self.group.processes() if _number_in_namespace(pid) == 1]
                if first and services.have_started(self.upper, specification.services):
                    return first[0]
                if not self.group.processes():
                    raise ClusterError(
                        f"{self.name} did not boot: {services.last_words(boot_log)}",
                        log=boot_log,
                        remedy="see its log",
                    )
                raise _StillBootingError
        raise ClusterError(
            f"{self.name} did not boot within {_BOOTS_WITHIN} s",
            log=boot_log,
            remedy="see its log, and whether the machine is overloaded",
        )

    def pretended(self, path: str) -> str | None:
        """What its present boot lays over a file of the kernel's; None where nothing lies."""
        text = json.loads((self.state / "boot.json").read_text())["files"].get(path)
        return text if isinstance(text, str) else None

    def pid(self) -> int | None:
        """Its first process as this host numbers it; None when it is off."""
        try:
            pid = int((self.state / "init.pid").read_text())
        except FileNotFoundError:
            return None
        return pid if self.group.holds(pid) else None

    def kill(self) -> None:
        """A power cut: nothing gets to say a word."""
        if (pid := self.pid()) is not None:
            os.kill(pid, signal.SIGKILL)  # its whole PID namespace dies with it
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

    async def kill_service(self, name: str) -> None:
        """Let it die from one moment to the next; it stays away until it is started."""
        service = f"/{services.DIRECTORY}/{name}"
        await self.run("sv", "-v", "-w", "30", "once", service)  # waits until it is known not to be started again
        await self.run("sv", "kill", service)

    @asynccontextmanager
    async def paused_service(self, name: str) -> AsyncIterator[None]:
        """It stands still inside the block."""
        await self.run("sv", "pause", f"/{services.DIRECTORY}/{name}")
        try:
            yield
        finally:
            await self.run("sv", "cont", f"/{services.DIRECTORY}/{name}")

    async def restart_service(self, name: str) -> None:
        """Stop it and start it again; its wanted end counts for no death."""
        await self.stop_service(name)
        await self.start_service(name)

    def check_alive(self, names: Iterable[str]) -> None:
        """Whether none of these services has died.

        Raises:
            ClusterError: one has; its log's last line tells why.
        """
        for name in names:
            if services.has_died(self.logs, name):
                log = self.log(name)
                raise ClusterError(
                    f"{name} on {self.name} has died: {services.last_words(log)}",
                    log=log,
                    remedy="correct what the kind config says of it, or see its log",
                )

    async def while_alive(self, names: Sequence[str], work: Coroutine[Any, Any, T]) -> T:
        """Do work that these services are needed for; the death of one ends it at once.

        Raises:
            ClusterError: one has died.
        """
        with Inotify() as deaths:
            deaths.add_watch(self.logs / services.DEATHS, Mask.CREATE)
            working = asyncio.create_task(work, name="work that needs services")
            dying = asyncio.create_task(self._death(deaths, names), name=f"deaths on {self.name}")
            try:
                await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
                self.check_alive(names)
                return working.result()
            finally:
                working.cancel()
                dying.cancel()
                await asyncio.gather(working, dying, return_exceptions=True)

    async def _death(self, deaths: Inotify, names: Sequence[str]) -> None:
        self.check_alive(names)
        async for _ in deaths:
            self.check_alive(names)


_ENVIRONMENT = (
    "-i",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "LC_ALL=C.UTF-8",
)


class _StillBootingError(Exception):
    pass


def _number_in_namespace(pid: int) -> int | None:
    """What a process is called in its innermost PID namespace; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
    return int(numbers[-1]) if len(numbers) > 1 else None
