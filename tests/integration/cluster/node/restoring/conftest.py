"""A node on which our programs are installed, and what containerd, the kubelet and the agent do on it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import pytest

from cedana_sched.agent.workload_runtime import UNKNOWN_ORIGIN
from cedana_sched.cluster.node.installation.programs import Programs
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.kube.builtin_kinds import Container as KubeContainer
from cedana_sched.kube.builtin_kinds import Metadata, PodSpec
from cedana_sched.kube.builtin_kinds import Pod as KubePod
from cedana_sched.local.runs.child_subreaper import become_child_subreaper
from cedana_sched.model.objects.names import RESTORE_CONTAINER, RESTORE_IDENTITY
from cedana_sched.model.policy import OnRestoreFailure, OnVolumeChange
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.folder_archive import write_archive
from tests.integration.cluster.node.conftest import ACCOUNT, IMAGE, Laboratory
from tests.integration.cluster.node.pods import Change, Container, Pod, write_state


@dataclass
class Watched:
    """What the agent's watches would know."""

    pods: dict[str, KubePod] = field(default_factory=dict)
    policy: OnRestoreFailure = OnRestoreFailure.COLD_START
    volume_changes: OnVolumeChange = OnVolumeChange.REWIND
    other_images: bool = False

    def pod(self, uid: str) -> KubePod | None:
        return self.pods.get(uid)

    async def wait_ended(self, uid: str) -> None:
        await asyncio.Event().wait()

    def restore_failure_policy(self, workload: WorkloadRef) -> OnRestoreFailure:
        return self.policy

    def volume_change_policy(self, workload: WorkloadRef) -> OnVolumeChange:
        return self.volume_changes

    def image_may_change(self, workload: WorkloadRef) -> bool:
        return self.other_images

    def service_account_may_change(self, workload: WorkloadRef) -> bool:
        return False


class _Stream:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.close = file.close

    def write(self, data: memoryview) -> None:
        self._file.write(data)


class Site(Laboratory):
    """The laboratory with the runtime handler in runc's place."""

    def __init__(self, folder: Path, toolchain: Toolchain) -> None:
        super().__init__(folder, toolchain)
        self.state = folder / "run"
        programs = Programs(folder / "opt", folder / "opt", self.state)
        programs.activate_version(programs.write_version(toolchain, Path("/usr/sbin/runc")))
        self.node.runc_command = [
            str(programs.handler), "--root", str(self.node.places.states), "--log-format", "json",
        ]  # fmt: skip
        self.watched = Watched()
        self.template: Change = lambda _: None
        """What is different in the containers of pods that come back."""
        self.origin = UNKNOWN_ORIGIN
        self.has_input = False
        """Whether these have `stdin: true`."""
        self.returns = PodRestorer(self.node.places, self.state, folder / "data", toolchain, self.watched, 20.0)

    def take(self, pod: Pod) -> Path:
        """Freeze, dump, commit, kill and stage a pod."""
        running = self.freeze(pod)
        images = self.stage(self.dump(running))
        self.facts = running.restore_facts
        archives = {images / "volumes" / f"{name}.tar": folder for name, folder in running.volumes.items()}
        archives |= {images / one.name / "rootfs.tar": one.changes for one in running.containers if one.changes}
        for archive, folder in archives.items():
            if not archive.exists():
                archive.parent.mkdir(exist_ok=True)
                write_archive(folder, _Stream(archive.open("wb")))
        for cgroup in running.freezer_cgroups:
            freezer.kill(cgroup)
        pod.end()
        return images

    def replacement(self, uid: str, *containers: str, inits: tuple[str, ...] = ()) -> Pod:
        """A pod that waits, as the webhook has made it: its volumes are mounted, its restore container comes."""
        pod = self.node.pod(uid)
        folder = self.node.places.pods / uid
        (folder / "volumes/kubernetes.io~empty-dir/cedana-restore").mkdir()
        ready = folder / "plugins/kubernetes.io~empty-dir/cedana-restore/ready"
        ready.parent.mkdir(parents=True)
        ready.touch()
        self.watched.pods[uid] = KubePod(
            metadata=Metadata(name=uid, namespace="team-a", uid=uid, annotations={RESTORE_IDENTITY: "sim/0@1"}),
            spec=PodSpec(
                service_account_name=ACCOUNT,
                containers=tuple(KubeContainer(name, IMAGE) for name in containers),
                init_containers=tuple(KubeContainer(name, IMAGE) for name in (RESTORE_CONTAINER, *inits)),
            ),
        )
        return pod

    def return_of(self, pod: Pod) -> str:
        """A return of its own for each sandbox."""
        return f"restore.{pod.uid}{pod.suffix}"

    def wait_in(self, pod: Pod, attempt: int = 0) -> subprocess.Popen[str]:
        """Start the restore container's program, which no runc is needed for; its bundle and its state are there.

        `attempt`: the kubelet has started it before in the same sandbox.
        """
        container = Container(self.node, pod, f"{RESTORE_CONTAINER}{attempt or ''}")
        container.make([], name=RESTORE_CONTAINER)
        volume = self.node.places.pods / pod.uid / "volumes/kubernetes.io~empty-dir/cedana-restore"
        program = [sys.executable, "-I", "-m", "cedana_sched.runtime_handler.wait", str(volume)]
        process = subprocess.Popen(
            ["sh", "-c", 'read -r _ && exec "$@"', "sh", *program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        write_state(self.node.places.states / container.id, process.pid)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process

    def bring_back(self, pod: Pod, images: Path, *start: str) -> BaseException | None:
        """The agent continues a pod while the kubelet starts its containers; returns what the agent was told."""
        with ThreadPoolExecutor() as pool:
            agent = pool.submit(
                asyncio.run, self.returns.restore(self.return_of(pod), self.ref(pod), images, self.facts, self.origin)
            )
            try:
                said = self.let_start(pod, *start)
            finally:
                error = agent.exception(30)
        self.said = said
        return error

    def refuse(self, pod: Pod, images: Path) -> None:
        """The agent is to continue a pod, and must not tell its restore container."""
        with self.wait_in(pod) as waiting:
            try:
                asyncio.run(self.returns.restore(self.return_of(pod), self.ref(pod), images, self.facts))
            finally:
                waiting.kill()

    def let_start(self, pod: Pod, *start: str) -> str:
        """Start a pod's containers in turn, once the restore container has ended well; returns what it said."""
        waiting = self.wait_in(pod)
        said, _ = waiting.communicate(timeout=30)
        assert waiting.returncode == 0, said
        for name in start:
            container = pod.container(name)
            container.make(["/bin/echo", "cold"])
            container.change(self.template)
            container.has_input = self.has_input
            container.start()
        return said


@pytest.fixture
def site(tmp_path: Path, toolchain: Toolchain) -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    become_child_subreaper()
    laboratory = Site(tmp_path, toolchain)
    yield laboratory
    laboratory.node.close()
