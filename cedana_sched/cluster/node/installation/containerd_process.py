"""The containerd that serves the kubelet: found by its socket, restarted through its supervisor.

A restart of containerd ends no pod: the pods' processes belong to shims, to which containerd reconnects. containerd
reads its configuration only at its start.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import tenacity

from cedana_sched.cluster.node.installation.host import Host, HostError
from cedana_sched.retrying import AWAITED

_ANSWERS_SECONDS = 60.0
_LISTENING = "00010000"  # flags in /proc/net/unix
_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)", re.MULTILINE)
_SUPERVISED = "runsv"


@dataclass(frozen=True)
class ContainerdProcess:
    """A running containerd.

    Args:
        pid: in the agent's PID namespace, which is the host's.
        command: its arguments.
        search_path: its PATH, on which its shims look for runc.
    """

    pid: int
    command: tuple[str, ...]
    search_path: str

    def restart_command(self, proc: Path = Path("/proc")) -> tuple[str, ...]:
        """Return the command that restarts it on the host: systemd by its unit, runit by its folder.

        Raises:
            HostError: it has no known supervisor, or it has exited.
        """
        process = proc / str(self.pid)
        try:
            if unit := _UNIT.search((process / "cgroup").read_text()):
                return ("systemctl", "restart", unit.group(1))
            parent = proc / (process / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1]
            if (parent / "comm").read_text(errors="replace").strip() == _SUPERVISED:
                return ("sv", "restart", str((parent / "cwd").readlink()))
        except (FileNotFoundError, ProcessLookupError) as error:
            raise HostError(
                f"containerd (process {self.pid}) ended before it could be restarted", remedy="see its log on the node"
            ) from error
        raise HostError(
            "containerd runs under neither systemd nor runit, so it is not known how to restart it",
            remedy="restart it, and set restartContainerd to false",
        )


def find_containerd(socket: Path, proc: Path = Path("/proc")) -> ContainerdProcess:
    """Return the process that listens on a socket of the host's network namespace.

    Raises:
        HostError: there is none, or it is not containerd.
    """
    inode = _listening_inode((proc / "1/net/unix").read_text(errors="replace"), str(socket))
    for process in _processes_holding_socket(proc, inode) if inode else ():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has exited meanwhile
            command = tuple((process / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0"))
            if Path(command[0]).name != "containerd":
                break
            variables = (process / "environ").read_bytes().decode(errors="replace").split("\0")
            found = next((entry.removeprefix("PATH=") for entry in variables if entry.startswith("PATH=")), "")
            return ContainerdProcess(int(process.name), command, found)
    raise HostError(
        f"no containerd listens at {socket}",
        remedy="name its socket in containerdSocket; CRI-O has no known way to restore by a runtime handler",
    )


def _listening_inode(table: str, socket: str) -> str | None:
    """Return field `Inode` of /proc/net/unix (proc_net(5))."""
    names = {socket, f"/run{socket.removeprefix('/var/run')}"}
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[7] in names and fields[3] == _LISTENING:
            return fields[6]
    return None


def _processes_holding_socket(proc: Path, inode: str) -> Iterator[Path]:
    for process in proc.iterdir():
        if process.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it has exited meanwhile
                if any(_is_link_to_socket(entry, inode) for entry in list((process / "fd").iterdir())):
                    yield process


def _is_link_to_socket(descriptor: Path, inode: str) -> bool:
    try:
        return os.readlink(descriptor) == f"socket:[{inode}]"  # noqa: PTH115 - it is no path
    except FileNotFoundError:
        return False  # closed meanwhile


async def restart(daemon: ContainerdProcess, host: Host, socket: Path) -> ContainerdProcess:
    """Restart containerd, and return the new process once it accepts connections; by then its plugins are loaded.

    Raises:
        HostError: it does not accept connections in time.
    """
    await host.run(*daemon.restart_command())
    try:
        await _wait_accepting_connections(host.agent_path(socket))
    except OSError as error:
        raise HostError(
            f"containerd does not take calls {_ANSWERS_SECONDS:g} s after its restart: {error.strerror}",
            remedy="see its log on the node",
        ) from error
    return await asyncio.to_thread(find_containerd, socket)


@tenacity.retry(
    wait=AWAITED,
    stop=tenacity.stop_before_delay(_ANSWERS_SECONDS),
    retry=tenacity.retry_if_exception_type(OSError),
    reraise=True,
)
async def _wait_accepting_connections(socket: Path) -> None:
    _, writer = await asyncio.open_unix_connection(str(socket))
    writer.close()
    await writer.wait_closed()
