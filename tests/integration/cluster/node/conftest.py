"""A node with pods of the real runc, and the whole way of one into a store and back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cedana_sched.agent.capture_messages import CaptureCommitted, CaptureFailed, CaptureReport, CaptureRequest
from cedana_sched.agent.capture_processes import CaptureDetacher, CaptureProcesses
from cedana_sched.agent.workload_runtime import RunningWorkload
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.pod_containers import PodContainers
from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.cluster.node.pod_runtime import PodRuntime
from cedana_sched.local.runs.child_subreaper import become_child_subreaper
from cedana_sched.model.identity import Identity
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot import freezer
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.store.page_fingerprint_cache import CACHE_BYTES
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.integration.cluster.node.pods import Node, Pod


async def _was_restored(workload: WorkloadRef) -> bool:
    """No pod is restored by itself: the tests call runc where the runtime handler would."""
    del workload
    return False


class _Specs:
    def images(self, uid: str) -> dict[str, str]:
        return dict.fromkeys(CONTAINERS, IMAGE)

    def service_account(self, uid: str) -> str | None:
        return ACCOUNT


IMAGE = "registry.example/sim@sha256:0a1b"
"""By which all containers are made."""
CONTAINERS = ("main", "beside", "first", "second", "stubborn", "speaker", "server", "listener", "good", "client")
"""What containers of pods are called that are saved."""
ACCOUNT = "simulations"
"""Whose all pods are."""
_ATTEMPTS = 10


class Laboratory:
    """Takes pods through their generations."""

    def __init__(self, folder: Path, toolchain: Toolchain) -> None:
        self.folder = folder
        self.toolchain = toolchain
        self.node = Node(folder, toolchain)
        self.see(self.node.places)
        self.storage = StorageConfig.parse(str(folder / "store"))
        self.store = SnapshotStore.open(self.storage)
        self.identity = Identity("team-a", "sim")
        self.launcher: tuple[str, ...] = ()
        self.shelter: CaptureDetacher | None = None
        self._captures = 0

    def see(self, places: HostPaths) -> None:
        """Make another runtime, which finds the pods at these places."""
        self.pending_kills = PendingKills(self.folder / "doomed", PodContainers(places).kill)
        self.runtime = PodRuntime(_was_restored, places, self.pending_kills, _Specs())

    def ref(self, pod: Pod) -> WorkloadRef:
        return WorkloadRef(pod.uid, "team-a", pod.uid, "here")

    def look(self, pod: Pod) -> RunningWorkload:
        running = asyncio.run(self.runtime.find_running(self.ref(pod)))
        assert running is not None
        return running

    def freeze(self, pod: Pod) -> RunningWorkload:
        """Frozen, it tells more of itself than before."""
        freezer.freeze_together(self.look(pod).freezer_cgroups)
        return self.look(pod)

    def dump(self, running: RunningWorkload) -> CaptureCommitted:
        """Dump and commit a frozen pod, as the agent does."""
        report = asyncio.run(self.capture(running))
        assert isinstance(report, CaptureCommitted), report
        return report

    def save(self, pod: Pod) -> tuple[RunningWorkload, CaptureCommitted]:
        """Freeze, dump and commit a pod; again where that is a matter of time, as the coordinator does."""
        for _ in range(_ATTEMPTS):
            running = self.freeze(pod)
            report = asyncio.run(self.capture(running))
            if isinstance(report, CaptureCommitted):
                return running, report
            assert isinstance(report, CaptureFailed), report
            assert report.retryable, report
            freezer.thaw_together(running.freezer_cgroups)
        pytest.fail(f"{_ATTEMPTS} attempts failed; the last: {report}")

    async def capture(self, running: RunningWorkload) -> CaptureReport:
        """The last word of a capture process."""
        self._captures += 1
        uid = f"c{self._captures}"
        request = CaptureRequest(
            checkpoint_uid=uid,
            identity=self.identity,
            workload=running,
            store=self.storage.dump_with_secrets(),
            toolchain=self.toolchain,
            cache_directory=str(self.folder / "fingerprints"),
            cache_bytes=CACHE_BYTES,
            work_directory=str(self.folder / "captures" / uid),
            compression="lz4",
            reason="Test",
            adapter="test",
            frozen_at=0.0,
            timeout_seconds=60.0,
            launcher=self.launcher,
        )
        async with CaptureProcesses(self.toolchain, self.folder / "captures", self.shelter) as captures:
            reports = [report async for report in captures.run(request)]
        return reports[-1]

    def stage(self, committed: CaptureCommitted) -> Path:
        images = self.folder / f"staged-{committed.snapshot.generation}"
        images.mkdir()
        self.store.open_snapshot(committed.snapshot).stage(images)
        return images


@pytest.fixture
def lab(tmp_path: Path, toolchain: Toolchain) -> Iterator[Laboratory]:
    if os.geteuid() != 0:
        pytest.skip("containers need root")
    become_child_subreaper()
    laboratory = Laboratory(tmp_path, toolchain)
    yield laboratory
    laboratory.node.close()
