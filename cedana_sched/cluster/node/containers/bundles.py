"""The running containers of a pod, found by the annotations that containerd writes into their OCI bundles.

    io.kubernetes.cri.container-type    `container`, or `sandbox` for the pod's own, which is left out
    io.kubernetes.cri.sandbox-uid       the pod's uid
    io.kubernetes.cri.container-name    its name in the pod
    io.kubernetes.cri.sandbox-id        which of the pod's sandboxes it is in

A container runs while runc has a `state.json` for it whose first process is still the same process.

The restore container that the webhook injects is not identified by its name alone, which a tenant may choose while no
webhook answers: it also runs our program, on the volume that it shares with the agent. Its image is not compared,
because an upgrade changes the image while pods wait.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.model.objects.names import RESTORE_COMMAND, RESTORE_CONTAINER, RESTORE_VOLUME
from cedana_sched.runtime_handler.runc_restore import RESTORED
from cedana_sched.runtime_handler.same_process import is_running
from cedana_sched.runtime_handler.wait import FOLDER

_TYPE, _POD, _NAME, SANDBOX_ID = (
    f"io.kubernetes.cri.{word}" for word in ("container-type", "sandbox-uid", "container-name", "sandbox-id")
)

_RESTORE_SOURCE = f"/volumes/kubernetes.io~empty-dir/{RESTORE_VOLUME}"

T = TypeVar("T")


class Mount(msgspec.Struct, frozen=True):
    destination: str
    type: str = ""
    source: str = ""


class Namespace(msgspec.Struct, frozen=True):
    type: str
    path: str = ""
    """Path of the namespace that the container joins; empty for a namespace of its own."""


class Linux(msgspec.Struct, frozen=True, rename="camel"):
    namespaces: tuple[Namespace, ...] = ()
    masked_paths: tuple[str, ...] = ()


class ProcessSpecification(msgspec.Struct, frozen=True):
    args: tuple[str, ...] | None = None
    terminal: bool = False
    """Whether its standard streams are a terminal (`tty: true`)."""


class Specification(msgspec.Struct, frozen=True):
    """The fields read from a bundle's `config.json` (OCI runtime specification)."""

    linux: Linux = Linux()
    process: ProcessSpecification = ProcessSpecification()
    mounts: tuple[Mount, ...] = ()
    annotations: dict[str, str] = {}

    @property
    def is_restore_container(self) -> bool:
        """Whether this is the restore container that the webhook has injected."""
        return (
            self.annotations.get(_TYPE) == "container"
            and self.annotations.get(_NAME) == RESTORE_CONTAINER
            and self.process.args == (RESTORE_COMMAND,)
            and any(one.destination == FOLDER and one.source.endswith(_RESTORE_SOURCE) for one in self.mounts)
        )


class State(msgspec.Struct, frozen=True):
    """The fields read from runc's `state.json`."""

    init_process_pid: int
    init_process_start: int
    """Field 22 of /proc/PID/stat: clock ticks after the machine's boot."""
    cgroup_paths: dict[str, str]
    """By controller on cgroup v1; on v2 the only one, under an empty name."""
    external_descriptors: tuple[str, ...] | None = None
    """Targets of descriptors 0 to 2 of the first process when it was started."""


class Container(msgspec.Struct, frozen=True):
    """A running container of a pod."""

    name: str
    bundle: Path
    """On the host."""
    specification: Specification
    state: State
    is_restored: bool = False
    """Whether it was restored from a snapshot; False after the kubelet has restarted it in place."""

    @property
    def pid(self) -> int:
        return self.state.init_process_pid

    @property
    def is_restore_container(self) -> bool:
        """Whether this is the pod's restore container."""
        return self.specification.is_restore_container

    @property
    def sandbox(self) -> str:
        """Containerd's id of the container's sandbox; empty if the annotation is missing."""
        return self.specification.annotations.get(SANDBOX_ID, "")


class Incarnation(NamedTuple):
    """A running restore container, whose start begins an incarnation of its pod; identified as described above."""

    container: str
    """Containerd's id; never reused."""
    sandbox: str
    """Likewise. The kubelet may create several restore containers in one sandbox, if the first ones fail."""


class Bundles:
    """Reads the bundles of a node; immutable files are read once."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._read: dict[str, Specification] = {}

    def workload_containers(self, pod_uid: str) -> tuple[Container, ...]:
        """Return a pod's running containers, by name, without the restore container; blocks for some milliseconds."""
        return tuple(one for one in self.running_containers(pod_uid) if not one.is_restore_container)

    def running_containers(self, pod_uid: str) -> tuple[Container, ...]:
        """Return the same including the restore container."""
        found = []
        for identifier, specification in self._read_all_bundles().items():
            notes = specification.annotations
            name = notes.get(_NAME)
            if notes.get(_POD) != pod_uid or notes.get(_TYPE) != "container" or name is None:
                continue
            if state := self._read_running_state(identifier):
                bundle = self._paths.bundles / identifier
                found.append(Container(name, bundle, specification, state, self._is_restored(identifier)))
        return tuple(sorted(found, key=lambda container: container.name))

    def running_incarnations(self) -> dict[str, Incarnation]:
        """Return the running restore containers of this node whose sandboxes run, by pod uid."""
        known = self._read_all_bundles()
        found = {}
        for identifier, specification in known.items():
            notes = specification.annotations
            sandbox = notes.get(SANDBOX_ID, "")
            if (
                specification.is_restore_container
                and sandbox in known
                and self._read_running_state(identifier)
                and self._read_running_state(sandbox)
            ):
                found[notes.get(_POD, "")] = Incarnation(identifier, sandbox)
        return found

    def incarnation_of_pod(self, pod_uid: str) -> Incarnation | None:
        """Return the running restore container of a pod; None if none runs."""
        return self.running_incarnations().get(pod_uid)

    def sandbox_pid(self, pod_uid: str) -> int | None:
        """Return the PID of the process that holds a pod's namespaces; None if it does not run."""
        found = self._find_running_sandbox(pod_uid)
        return None if found is None else found[1].init_process_pid

    def sandbox_id(self, pod_uid: str) -> str | None:
        """Return containerd's id of a pod's running sandbox; None if none runs."""
        found = self._find_running_sandbox(pod_uid)
        return None if found is None else found[0]

    def _find_running_sandbox(self, pod_uid: str) -> tuple[str, State] | None:
        for identifier, specification in self._read_all_bundles().items():
            notes = specification.annotations
            is_its = notes.get(_POD) == pod_uid and notes.get(_TYPE) == "sandbox"
            if is_its and (state := self._read_running_state(identifier)):
                return identifier, state
        return None

    def _read_all_bundles(self) -> dict[str, Specification]:
        """Read all bundles; a bundle's file is written before its container is created, and never again."""
        found: dict[str, Specification] = {}
        directory = self._paths.agent_path(self._paths.bundles)
        for path in directory.iterdir() if directory.exists() else ():
            specification = self._read.get(path.name) or _decode(path / "config.json", Specification)
            if specification is not None:
                found[path.name] = specification
        self._read = found
        return found

    def _is_restored(self, identifier: str) -> bool:
        return (self._paths.agent_path(self._paths.states) / identifier / RESTORED).exists()

    def _read_running_state(self, identifier: str) -> State | None:
        state = _decode(self._paths.agent_path(self._paths.states) / identifier / "state.json", State)
        if state is None or not is_running(state.init_process_pid, state.init_process_start):
            return None
        return state


def _decode(path: Path, kind: type[T]) -> T | None:
    """Decode a file; None if it does not exist, or is just being written."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
