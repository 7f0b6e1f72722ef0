"""What a node's kubelet evicts pods for is read where it says so: its arguments, its files, its defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cedana_sched.agent.staging import Reserve
from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.node.kubelet_thresholds import KubeletThresholds
from cedana_sched.cluster.node.main import _staging_reserve
from cedana_sched.store.storage_config import StorageConfig

DEFAULT = Reserve(0.16, 0, 0.06, 0)
GIB = 1 << 30


class Node:
    """A node's processes and files, as an agent sees them."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.files = folder / "files"
        self.kubelet = KubeletThresholds(self.files / "var/lib/kubelet", self.proc)
        self.process(1, "/sbin/init")
        self.process(2, "/usr/bin/kubelet-watcher", "--config=/nowhere")

    def process(self, pid: int, *words: str, namespace: str = "pid:[4026531836]") -> None:
        folder = self.proc / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns/pid").symlink_to(namespace)
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        self.files.mkdir(exist_ok=True)
        (folder / "root").symlink_to(self.files)

    def file(self, path: str, text: str) -> None:
        (self.files / path).parent.mkdir(parents=True, exist_ok=True)
        (self.files / path).write_text(text)

    def reserve(self) -> Reserve:
        found = self.kubelet.read_reserve()
        return Reserve(round(found.share, 4), found.size, round(found.inode_share, 4), found.inodes)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("configuration", "wanted"),
    [
        ("kind: KubeletConfiguration\n", DEFAULT),
        ("evictionHard: {nodefs.available: 1%, imagefs.available: 2%}\n", Reserve(0.03, 0, 0.01, 0)),
        ("evictionHard: {nodefs.available: 20%, imagefs.inodesFree: 7%}\n", Reserve(0.21, 0, 0.08, 0)),
        ("evictionHard: {memory.available: 50Mi}\n", Reserve(0.01, 0, 0.01, 0)),
        ("evictionHard: {memory.available: 50Mi}\nmergeDefaultEvictionSettings: true\n", DEFAULT),
        ("evictionHard: {nodefs.available: 50Gi, nodefs.inodesFree: 100k}\n", Reserve(0.01, 50 * GIB, 0.01, 100_000)),
        ("evictionSoft: {imagefs.available: 30%}\n", Reserve(0.31, 0, 0.06, 0)),
        (json.dumps({"evictionHard": {"nodefs.available": "5%"}}), Reserve(0.06, 0, 0.01, 0)),
        ("imageGCHighThresholdPercent: 50\n", DEFAULT),
    ],
)
def test_a_file_says_what_the_kubelet_keeps_free(node: Node, configuration: str, wanted: Reserve) -> None:
    node.process(77, "/usr/bin/kubelet", "--v=2", "--config", "/etc/kubernetes/kubelet.conf")
    node.file("etc/kubernetes/kubelet.conf", configuration)
    assert node.reserve() == wanted


def test_arguments_and_later_files_win(node: Node) -> None:
    node.process(77, "kubelet", "--config=/k.yaml", "--config-dir=/k.d", "--eviction-soft=nodefs.available<40%")
    node.file("k.yaml", "evictionHard: {nodefs.available: 5%, imagefs.available: 3%}\nevictionSoft: {}\n")
    node.file("k.d/10-disk.conf", "evictionHard: {nodefs.available: 12%}\n")
    assert node.reserve() == Reserve(0.41, 0, 0.01, 0)
    (node.proc / "77/cmdline").write_bytes(b"kubelet\0--config=/k.yaml\0--config-dir=/k.d\0")
    assert node.reserve() == Reserve(0.13, 0, 0.01, 0), "it is read anew each time"


def test_without_a_kubelet_of_its_own_its_folder_is_looked_into(node: Node) -> None:
    assert node.reserve() == DEFAULT
    node.file("var/lib/kubelet/config.yaml", "evictionHard: {nodefs.available: 2%}\n")
    assert node.reserve() == Reserve(0.03, 0, 0.01, 0)


def test_process_of_a_pod_is_no_kubelet_whatever_it_calls_itself(node: Node) -> None:
    """Its file may be a pipe that nobody writes, and hold up every return to the node."""
    node.process(50, "kubelet", "--eviction-hard=nodefs.available<99%", namespace="pid:[4026532900]")
    node.file("var/lib/kubelet/config.yaml", "evictionHard: {nodefs.available: 2%}\n")
    assert node.reserve() == Reserve(0.03, 0, 0.01, 0)
    node.process(77, "kubelet", "--eviction-hard=nodefs.available<7%")
    assert node.reserve() == Reserve(0.08, 0, 0.01, 0)


@pytest.mark.parametrize("text", ["", "[", "- a\n", "evictionHard: {nodefs.available: much%}\n"])
def test_what_cannot_be_read_is_as_the_default(node: Node, text: str) -> None:
    node.process(77, "kubelet", "--config=/k.yaml")
    assert node.reserve() == DEFAULT, "there is no such file"
    node.file("k.yaml", text)
    assert node.reserve() == DEFAULT


def test_a_share_and_a_size_are_both_kept_free() -> None:
    reserve = Reserve(0.1, 50 * GIB, 0.1, 5)
    assert (reserve.reserved_bytes_of(100 * GIB), reserve.reserved_bytes_of(1000 * GIB)) == (50 * GIB, 100 * GIB)
    assert (reserve.reserved_inodes_of(10), reserve.reserved_inodes_of(1000)) == (5, 100)


def test_what_an_admin_says_counts_instead() -> None:
    storage = StorageConfig(path=Path("/snapshots"))
    told = AgentConfiguration(namespace="n", storage=storage, staging_reserve=0.2)
    assert _staging_reserve(told)() == Reserve(0.2, inode_share=0.2)
