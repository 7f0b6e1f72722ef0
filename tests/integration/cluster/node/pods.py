"""Pods without a Kubernetes: containers of the real runc in the namespaces of a pause process.

Their files are laid out as containerd and the kubelet lay them out, below one folder of the test's own:

    bundles/<id>/config.json, rootfs    as below /run/containerd/io.containerd.runtime.v2.task/k8s.io
    states/<id>/state.json              as below /run/containerd/runc/k8s.io
    pods/<uid>/volumes/…                as below /var/lib/kubelet/pods
    sandboxes/<id>/shm                  as below /run/containerd/io.containerd.grpc.v1.cri
    layers/<id>/upper                   where containerd keeps what a container has changed
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.model.objects.names import RESTORE_COMMAND, RESTORE_CONTAINER, RESTORE_VOLUME
from cedana_sched.runtime_handler.wait import FOLDER
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain

PATIENCE_SECONDS = 60.0
CGROUP = f"cedana-sched-test-{os.getpid()}"
_CAPABILITIES = ["CAP_CHOWN", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"]
_MASKED = ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi", "/sys/firmware"]
_READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
_SAFE = ["nosuid", "noexec", "nodev"]
_WHOLE_LINES = "import sys\nsys.stdout.reconfigure(line_buffering=True)\n"
"""`python3 -u` writes a line and its end by two calls; a freeze between them leaves the end to the next generation."""


Change = Callable[[dict[str, Any]], None]
"""Changes a specification."""


class Container:
    """One container of a pod: its bundle, its process, what it has written."""

    def __init__(self, node: Node, pod: Pod, name: str) -> None:
        self.node = node
        self.pod = pod
        self.name = name
        self.id = f"{pod.uid}-{name}{pod.suffix}"
        self.bundle = node.places.bundles / self.id
        self.upper = node.layers / self.id / "upper"
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._readers: list[threading.Thread] = []
        self.terminal: int | None = None
        """The master of its terminal, or the end of its input's pipe, as its shim has it; None if it has neither."""
        self.has_input = False
        """Whether it has `stdin: true` without a terminal: a pipe from its shim."""

    def make(self, command: Iterable[str], *, user: int = 0, readonly: bool = False, name: str | None = None) -> None:
        """Lay out its bundle, and mount its root as containerd's shim does before it calls runc.

        `name`: as which the kubelet made it, if that is not its own.
        """
        root, work = self.bundle / "rootfs", self.upper.parent / "work"
        for folder in (root, self.upper, work):
            folder.mkdir(parents=True)
        options = f"lowerdir=/,upperdir={self.upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, root], check=True)
        self.node.mounted.append(root)
        specification = _specification(self, list(command), user=user, readonly=readonly)
        specification["annotations"]["io.kubernetes.cri.container-name"] = name or self.name
        if name == RESTORE_CONTAINER:  # as the webhook makes it; no runc runs this one
            specification["process"]["args"] = [RESTORE_COMMAND]
            specification["mounts"].append(_bind(FOLDER, self.pod.volume.parent / RESTORE_VOLUME))
        (self.bundle / "config.json").write_text(json.dumps(specification))

    def change(self, change: Change) -> None:
        """Have its specification say something else."""
        specification = json.loads((self.bundle / "config.json").read_text())
        change(specification)
        (self.bundle / "config.json").write_text(json.dumps(specification))

    def create(self) -> None:
        specification = json.loads((self.bundle / "config.json").read_text())
        if specification["process"].get("terminal"):
            with self._console_socket() as words:
                self._runc_with_output("create", "--bundle", str(self.bundle), *words, self.id)
        else:
            self._runc_with_output("create", "--bundle", str(self.bundle), self.id)

    @contextlib.contextmanager
    def _console_socket(self) -> Iterator[tuple[str, ...]]:
        """Receive the terminal's master, as the shim does."""
        with tempfile.TemporaryDirectory(prefix="pty") as folder, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path := f"{folder}/pty.sock")
            listener.listen()
            listener.settimeout(PATIENCE_SECONDS)
            yield ("--console-socket", path)
            connection, _ = listener.accept()
            with connection:
                _, (master,), _, _ = socket.recv_fds(connection, 4096, 1)
        self.terminal = master

    def type(self, text: str) -> None:
        assert self.terminal is not None
        os.write(self.terminal, text.encode())

    def shows(self, wanted: str) -> str:
        """Read the terminal up to a text; return what it showed."""
        assert self.terminal is not None
        shown = ""
        while not shown.endswith(wanted):
            assert select.select([self.terminal], [], [], PATIENCE_SECONDS)[0], f"no {wanted!r} after {shown!r}"
            shown += os.read(self.terminal, 4096).decode()
        return shown

    def start(self) -> None:
        self.create()
        self.node.runc("start", self.id)

    def restore(self, images: Path) -> None:
        """As the runtime handler does when the shim says `create`."""
        work = self.node.folder / f"{self.id}.work"
        work.mkdir()
        try:
            self._runc_with_output(
                "restore", "--detach", "--bundle", str(self.bundle), "--image-path", str(images),
                "--work-path", str(work), "--manage-cgroups-mode", "ignore", "--file-locks", "--tcp-established",
                self.id,
            )  # fmt: skip
        except AssertionError as error:
            log = work / "restore.log"
            text = log.read_text() if log.exists() else "CRIU wrote no log"
            error.add_note("\n".join(line for line in text.splitlines() if "Error" in line or "Warn" in line))
            raise

    def await_lines(self, count: int) -> None:
        until(lambda: len(self.lines) >= count, lambda: f"{count} lines of {self.name}: {self.lines[-5:]}")

    def await_progress(self, lines: int = 3) -> None:
        self.await_lines(len(self.lines) + lines)

    @property
    def freezer(self) -> Path:
        paths = json.loads((self.node.places.states / self.id / "state.json").read_text())["cgroup_paths"]
        return Path(paths.get("freezer") or paths[""])

    def join(self) -> None:
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)

    def _runc_with_output(self, *words: str) -> None:
        log = self.node.folder / f"{self.id}.log"
        stdin = subprocess.DEVNULL
        if self.has_input:
            stdin, self.terminal = os.pipe()
        with self._pipe(self.lines) as stdout, self._pipe(self.errors) as stderr:
            done = subprocess.run(
                [*self.node.runc_command, "--log", str(log), *words],
                stdin=stdin, stdout=stdout, stderr=stderr, env=self.node.environment, check=False,
            )  # fmt: skip
        if self.has_input:
            os.close(stdin)
        assert done.returncode == 0, log.read_text()

    def _pipe(self, lines: list[str]) -> BinaryIO:
        """The writing end of a pipe, as containerd's shim makes them; what comes out of it is added to `lines`."""
        reading, writing = os.pipe()

        def read() -> None:
            with os.fdopen(reading) as stream:
                lines.extend(line.rstrip("\n") for line in iter(stream.readline, ""))

        self._readers.append(threading.Thread(target=read, name=f"output of {self.id}"))
        self._readers[-1].start()
        return os.fdopen(writing, "wb")


class Pod:
    """A sandbox: a process that holds the network, IPC and UTS namespaces, and the folders that die with the pod."""

    def __init__(self, node: Node, uid: str, attempt: int = 0) -> None:
        """The kubelet makes another sandbox for a pod whose first one has died: `attempt` 1, with the same volumes."""
        self.node = node
        self.uid = uid
        self.suffix = f"-{attempt}" if attempt else ""
        self.containers: dict[str, Container] = {}
        self.volume = node.places.pods / uid / "volumes/kubernetes.io~empty-dir/data"
        self.volume.mkdir(parents=True, exist_ok=bool(attempt))
        self.sandbox = f"{uid}-sandbox{self.suffix}"
        self.shared_memory = node.folder / "sandboxes" / self.sandbox / "shm"
        self.shared_memory.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "shm", "-o", "mode=1777", self.shared_memory], check=True)
        node.mounted.append(self.shared_memory)
        self._pause = subprocess.Popen(
            ["unshare", "--net", "--ipc", "--uts", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._pause.stdout is not None
        assert self._pause.stdout.readline() == b"\n"
        self._write_sandbox()

    def _write_sandbox(self) -> None:
        """Its bundle, and runc's state of it, as far as anybody reads them.

        Raises:
            FileNotFoundError, ProcessLookupError: the sandbox has died.
        """
        notes = {"container-type": "sandbox", "sandbox-uid": self.uid, "sandbox-id": self.sandbox}
        annotations = {f"io.kubernetes.cri.{name}": value for name, value in notes.items()}
        (bundle := self.node.places.bundles / self.sandbox).mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps({"annotations": annotations}))
        write_state(self.node.places.states / self.sandbox, self._pause.pid)

    def container(self, name: str) -> Container:
        self.containers[name] = Container(self.node, self, name)
        return self.containers[name]

    def run(
        self, name: str, program: str, *, user: int = 0, readonly: bool = False, change: Change = lambda _: None
    ) -> Container:
        """Start a container with a Python program."""
        container = self.container(name)
        container.make(["/usr/bin/python3", "-c", _WHOLE_LINES + program], user=user, readonly=readonly)
        container.change(change)
        container.start()
        return container

    def namespace(self, kind: str) -> str:
        return f"/proc/{self._pause.pid}/ns/{kind}"

    def await_end_of_sandbox(self) -> None:
        self._pause.wait(PATIENCE_SECONDS)

    def has_sandbox(self) -> bool:
        return self._pause.poll() is None

    def end(self) -> None:
        for container in self.containers.values():
            if (self.node.places.states / container.id).exists():
                freezer.thaw(container.freezer)
                self.node.runc("delete", "--force", container.id)
            container.join()
        self._pause.kill()
        self._pause.wait()
        assert self._pause.stdout is not None
        self._pause.stdout.close()


def write_state(folder: Path, pid: int) -> None:
    """Write into `folder` what runc keeps of a container, as far as anybody reads it.

    Raises:
        FileNotFoundError, ProcessLookupError: its first process has ended.
    """
    start = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    folder.mkdir(parents=True)
    hidden = folder / "state-new"
    hidden.write_text(json.dumps({"init_process_pid": pid, "init_process_start": start, "cgroup_paths": {}}))
    hidden.rename(folder / "state.json")


class Node:
    """A folder that looks like a host's, and everything that a test has made in it; `close` removes that."""

    def __init__(self, folder: Path, toolchain: Toolchain) -> None:
        self.folder = folder
        self.places = HostPaths(bundles=folder / "bundles", states=folder / "states", pods=folder / "pods")
        self.layers = folder / "layers"
        self.layers.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "layers", self.layers], check=True)  # apart from the lower layer
        self.mounted = [self.layers]
        self.runc_command = ["runc", "--root", str(self.places.states)]
        path = f"{toolchain.criu.parent}:{os.environ['PATH']}"
        self.environment = toolchain.criu_environment() | {"PATH": path}
        self._pods: list[Pod] = []

    def pod(self, uid: str, attempt: int = 0) -> Pod:
        self._pods.append(Pod(self, uid, attempt))
        return self._pods[-1]

    def runc(self, *words: str) -> str:
        done = subprocess.run(
            [*self.runc_command, *words], capture_output=True, text=True, env=self.environment, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        for pod in self._pods:
            pod.end()
        for path in reversed(self.mounted):
            subprocess.run(["umount", path], check=True)
        for cgroup in (*Path("/sys/fs/cgroup").glob(f"*/{CGROUP}"), Path("/sys/fs/cgroup", CGROUP)):
            folders = [path for path in cgroup.rglob("*") if path.is_dir()]
            for folder in (*reversed(folders), *([cgroup] if cgroup.exists() else [])):
                folder.rmdir()
        with contextlib.suppress(ChildProcessError):  # this process is the containers' subreaper
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:g} s: {what()}"
        time.sleep(0.01)  # a pipe that a thread reads, a process that another waits for


def _specification(container: Container, command: list[str], *, user: int, readonly: bool) -> dict[str, Any]:
    pod = container.pod
    capabilities = [] if user else _CAPABILITIES
    hosts = container.bundle / "hosts"
    hosts.write_text(f"127.0.0.1 localhost {pod.uid}\n")
    (secret := container.bundle / "secret").mkdir()
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": user, "gid": user},
            "args": command,
            "env": ["PATH=/usr/bin:/bin", "HOME=/"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": bool(user),
        },
        "root": {"path": "rootfs", "readonly": readonly},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": _SAFE},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
            {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": _SAFE},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": [*_SAFE, "ro"]},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": [*_SAFE, "ro"]},
            _bind("/dev/shm", pod.shared_memory),
            _bind("/etc/hosts", hosts),
            _bind("/var/run/secrets/token", secret),  # /var/run is a link: it is mounted elsewhere than it is written
            _bind("/data", pod.volume),
        ],
        "annotations": {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": container.name,
            "io.kubernetes.cri.sandbox-uid": pod.uid,
            "io.kubernetes.cri.sandbox-id": pod.sandbox,
        },
        "linux": {
            "cgroupsPath": f"/{CGROUP}/{pod.uid}/{container.name}",
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "namespaces": [
                {"type": "pid"},
                {"type": "mount"},
                {"type": "network", "path": pod.namespace("net")},
                {"type": "ipc", "path": pod.namespace("ipc")},
                {"type": "uts", "path": pod.namespace("uts")},
            ],
            "maskedPaths": _MASKED,
            "readonlyPaths": _READ_ONLY,
        },
    }  # fmt: skip


def _bind(destination: str, source: Path) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", "rprivate", "rw"]}
