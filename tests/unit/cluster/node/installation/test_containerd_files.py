"""How containerd's configuration gets our handler, and loses it again, in every shape that nodes have."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.cluster.node.installation.containerd_files import DROP_IN, Change, ContainerdFiles
from cedana_sched.cluster.node.installation.host import HostError

MAIN = Path("/etc/containerd/config.toml")
PROGRAM = Path("/opt/cedana-sched/bin/cedana-runtime")
V2, V3 = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"

KUBEADM = """\
version = 2  # by hand
root = "/var/lib/containerd"

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "pause"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          SystemdCgroup = true
"""
VERSION_3 = """\
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = '/usr/local/bin/crun-like-runc'
"""
IMPORTING = 'imports = ["/etc/containerd/conf.d/*.toml"]\n' + KUBEADM
DEFAULT_NVIDIA = """\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
"""


class Files:
    """A host's /etc in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def here(self, path: Path) -> Path:
        return self.root / path.relative_to("/")

    def write(self, path: Path, content: str | None) -> None:
        if content is None:
            self.here(path).unlink()
        else:
            self.here(path).parent.mkdir(parents=True, exist_ok=True)
            self.here(path).write_text(content)

    def look(self) -> ContainerdFiles:
        return ContainerdFiles(MAIN, self.here)

    def apply(self, changes: list[Change]) -> None:
        for change in changes:
            self.write(change.path, change.content)

    def handler(self, path: Path, plugin: str) -> dict[str, Any]:
        found = tomllib.loads(self.here(path).read_text())["plugins"][plugin]["containerd"]["runtimes"]["cedana"]
        assert isinstance(found, dict)
        return found


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize(
    ("content", "plugin", "options", "runc"),
    [
        (KUBEADM, V2, {"SystemdCgroup": True}, "runc"),
        (VERSION_3, V3, {}, "/usr/local/bin/crun-like-runc"),
        (DEFAULT_NVIDIA, V2, {}, "/usr/bin/nvidia-container-runtime"),
        ("version = 2\n", V2, {}, "runc"),
        ("version = 4\n", V3, {}, "runc"),
        (KUBEADM.rstrip("\n"), V2, {"SystemdCgroup": True}, "runc"),
    ],
)
def test_a_block_is_added_and_taken_away_again(
    files: Files, content: str, plugin: str, options: dict[str, Any], runc: str
) -> None:
    files.write(MAIN, content)
    assert files.look().runc == runc

    files.apply(files.look().registration_changes(PROGRAM))

    written = files.here(MAIN).read_text()
    assert written.startswith(content)
    expected = {"runtime_type": "io.containerd.runc.v2", "options": options | {"BinaryName": str(PROGRAM)}}
    assert files.handler(MAIN, plugin) == expected
    assert files.look().runc == runc, "our own handler is not taken for the default one"
    assert files.look().registration_changes(PROGRAM) == [], "twice is once"
    (moved,) = files.look().registration_changes(Path("/elsewhere"))
    assert moved.content is not None
    assert moved.content.count("BEGIN") == 1
    files.apply(files.look().removal_changes())
    assert files.here(MAIN).read_text() == content
    assert files.look().removal_changes() == []


def test_where_a_folder_is_imported_a_file_of_ours_repeats_the_table(files: Files) -> None:
    files.write(MAIN, IMPORTING)
    drop_in = Path("/etc/containerd/conf.d", DROP_IN)

    files.apply(files.look().registration_changes(PROGRAM))

    assert files.here(MAIN).read_text() == IMPORTING
    assert files.handler(drop_in, V2)["options"] == {"SystemdCgroup": True, "BinaryName": str(PROGRAM)}
    table = tomllib.loads(files.here(drop_in).read_text())
    assert table["version"] == 2
    assert table["plugins"][V2]["sandbox_image"] == "pause", "containerd 1.7 takes the table whole"
    assert files.look().registration_changes(PROGRAM) == []
    files.apply(files.look().removal_changes())
    assert not files.here(drop_in).exists()


def test_the_table_of_the_last_file_counts(files: Files) -> None:
    files.write(MAIN, IMPORTING)
    files.write(Path("/etc/containerd/conf.d/99-nvidia.toml"), DEFAULT_NVIDIA)
    files.apply(files.look().registration_changes(PROGRAM))
    assert files.look().runc == "/usr/bin/nvidia-container-runtime"
    drop_in = tomllib.loads(files.here(Path("/etc/containerd/conf.d", DROP_IN)).read_text())
    assert drop_in["plugins"][V2]["containerd"]["default_runtime_name"] == "nvidia"


def test_a_change_of_the_main_file_is_followed(files: Files) -> None:
    files.write(MAIN, IMPORTING)
    files.apply(files.look().registration_changes(PROGRAM))
    files.write(MAIN, IMPORTING.replace("pause", "pause:2"))
    (change,) = files.look().registration_changes(PROGRAM)
    assert change.content is not None
    assert "pause:2" in change.content


def test_a_single_imported_file_gets_the_block(files: Files) -> None:
    files.write(MAIN, 'version = 2\nimports = ["cri.toml"]\n')
    files.write(Path("/etc/containerd/cri.toml"), KUBEADM)
    (change,) = files.look().registration_changes(PROGRAM)
    assert change.path == Path("/etc/containerd/cri.toml")


def test_a_node_without_a_main_file_gets_one(files: Files) -> None:
    assert files.look().removal_changes() == []
    files.apply(files.look().registration_changes(PROGRAM))
    assert files.handler(MAIN, V2)["options"] == {"BinaryName": str(PROGRAM)}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("disabled_plugins = []\n", "version 1"),
        ("version = 9\n", "version 9"),
        ("version = ", "no TOML"),
        ('version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {sandbox_image = "x"}}\n', "cannot be added"),
        (DEFAULT_NVIDIA.replace("io.containerd.runc.v2", "io.containerd.kata.v2"), r"io\.containerd\.kata\.v2"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_a_sentence(files: Files, content: str, problem: str) -> None:
    files.write(MAIN, content)
    with pytest.raises(HostError, match=problem) as caught:
        files.look().registration_changes(PROGRAM)
    assert caught.value.remedy
    assert files.here(MAIN).read_text() == content
