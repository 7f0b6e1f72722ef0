"""Which mounts of a container outlive its pod, and so may run ahead of its snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.open_volume_files import outlives_pod
from tests.unit.cluster.node.bundle_tree import Host

POD = "/var/lib/kubelet/pods/p1"


@pytest.mark.parametrize(
    ("source", "outlives"),
    [
        ("/srv/data", True),
        (f"{POD}/volumes/kubernetes.io~csi/pvc-1/mount", True),
        (f"{POD}/volumes/kubernetes.io~nfs/share", True),
        (f"{POD}/volume-subpaths/pvc-1/main/0", True),
        (f"{POD}/volumes/kubernetes.io~empty-dir/scratch", False),
        (f"{POD}/volumes/kubernetes.io~configmap/settings", False),
        (f"{POD}/volumes/kubernetes.io~projected/kube-api-access", False),
        (f"{POD}/volume-subpaths/scratch/main/0", False),
        (f"{POD}/etc-hosts", False),
        (f"{POD}/containers/main/3f", False),
        ("/run/containerd/io.containerd.grpc.v1.cri/sandboxes/s1/shm", False),
        ("/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/s1/resolv.conf", False),
        ("relative", False),
    ],
)
def test_a_volume_outlives_its_pod_unless_it_is_saved_or_made_with_it(
    source: str, outlives: bool, tmp_path: Path
) -> None:
    host = Host(tmp_path)
    host.folder(Path(f"{POD}/volumes/kubernetes.io~empty-dir/scratch"))
    host.folder(Path(f"{POD}/volumes/kubernetes.io~csi/pvc-1"))
    assert outlives_pod(Path(source), "s1", "p1", host.places) == outlives
