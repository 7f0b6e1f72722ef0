"""What CRIU is told of a container is what runc would tell it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from cedana_sched.cluster.node.containers.bundles import Bundles, Container, ProcessSpecification, State
from cedana_sched.cluster.node.containers.criu_dump_options import describe, freezer_of
from cedana_sched.cluster.node.containers.mounts import mount_points, resolve_inside, upper_directory
from tests.processes import without_first_thread
from tests.unit.cluster.node.bundle_tree import Host, state

MOUNTINFO = """\
474 473 {device} / / rw,relatime master:1 - overlay overlay rw,lowerdir=/l1:/l2,upperdir=/snap/3\\0407/fs,workdir=/w
475 474 0:53 / /proc rw,nosuid - proc proc rw
476 474 254:0 /pods/p1/hosts /etc/hosts rw - ext4 /dev/vda rw
477 474 254:0 /pods/p1/token /run/secrets/token rw - ext4 /dev/vda rw
478 475 0:5 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw
479 475 0:5 /null /proc/keys rw,nosuid - tmpfs tmpfs rw
480 474 0:60 / /sys/firmware ro,relatime - tmpfs tmpfs ro
481 474 0:61 / /sys/fs/cgroup ro - tmpfs tmpfs rw
482 481 0:30 / /sys/fs/cgroup/freezer ro - cgroup cgroup rw,freezer
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


@pytest.fixture
def container(tmp_path: Path, proc: Path) -> Container:
    host = Host(tmp_path / "host")
    host.container("a")
    (container,) = Bundles(host.places).workload_containers("p1")
    device = host.places.agent_path(host.places.bundles / "a/rootfs").stat().st_dev
    process = proc / str(container.pid)
    for folder in ("fd", "ns", "root/proc", "root/run", "root/var", "root/sys/firmware"):
        (process / folder).mkdir(parents=True)
    (process / "mountinfo").write_text(MOUNTINFO.format(device=f"{os.major(device)}:{os.minor(device)}"))
    (process / "root/var/run").symlink_to("/run")
    for name in ("kcore", "keys"):
        (process / "root/proc" / name).touch()
    for name in ("net", "pid", "ipc"):
        (process / "ns" / name).touch()
    for number, target in enumerate(("/dev/null", "pipe:[21]", "/var/log/own")):
        (process / "fd" / str(number)).symlink_to(target)
    return container


def test_all_that_comes_from_outside_is_external(container: Container, proc: Path, tmp_path: Path) -> None:
    tree = describe(container, Host(tmp_path / "host").places, proc)
    inode = (proc / str(container.pid) / "ns/net").stat().st_ino
    assert set(tree.externals) == {
        "mnt[/etc/hosts]:/etc/hosts",
        "mnt[/run/secrets/token]:/run/secrets/token",  # where the link leads
        "mnt[/dev/shm]:/dev/shm",
        "mnt[/sys/fs/cgroup/freezer]:/sys/fs/cgroup/freezer",
        "mnt[/proc/kcore]:/dev/null",
        "mnt[/proc/keys]:/dev/null",
        f"net[{inode}]:extRootNetNS",  # the namespace of processes is its own, that of messages is dumped
    }


CONSOLE = "483 474 0:62 /0 /dev/console rw,nosuid - devpts devpts rw,gid=5\n"


@pytest.mark.parametrize("has_terminal", [True, False])
def test_a_terminal_is_external_with_its_console(
    container: Container, proc: Path, tmp_path: Path, has_terminal: bool
) -> None:
    table = proc / str(container.pid) / "mountinfo"
    table.write_text(table.read_text() + CONSOLE)
    specification = replace(container.specification, process=ProcessSpecification(terminal=has_terminal))
    tree = describe(replace(container, specification=specification), Host(tmp_path / "host").places, proc)
    assert tree.has_outside_master is has_terminal
    assert ("mnt[/dev/console]:/dev/console" in tree.externals) is has_terminal


@pytest.mark.parametrize("name", [b"\xff", b"a\rb", b"a\x0cb", "a\u2028b".encode(), b"a\x1cb\x85\xc2\xa0"])
def test_mounted_folder_may_have_any_name(container: Container, proc: Path, tmp_path: Path, name: bytes) -> None:
    """Who may write the volume renames a folder of it that is mounted alone (`subPath`)."""
    mount = b"483 474 254:0 /pods/p1/data/" + name + b" /data/" + name + b" rw - ext4 /dev/vda rw\n"
    known = describe(container, Host(tmp_path / "host").places, proc)
    table = proc / str(container.pid) / "mountinfo"
    table.write_bytes(mount + table.read_bytes())
    assert describe(container, Host(tmp_path / "host").places, proc) == known


def test_places_are_the_hosts_for_criu_and_the_agents_for_the_agent(
    container: Container, proc: Path, tmp_path: Path
) -> None:
    tree = describe(container, Host(tmp_path / "host").places, proc)
    assert tree.root == Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io/a/rootfs")
    assert tree.freezer == tmp_path / "host/sys/fs/cgroup/freezer/kubepods/p1/main"
    assert tree.changes == tmp_path / "host/snap/3 7/fs"
    assert tree.name == "main"
    assert not tree.saves_shared_memory


def test_a_descriptor_that_the_first_process_gave_up_is_what_it_was_at_the_start(
    container: Container, proc: Path, tmp_path: Path
) -> None:
    tree = describe(container, Host(tmp_path / "host").places, proc)
    assert json.loads(tree.notes["descriptors.json"]) == ["/dev/null", "pipe:[21]", "pipe:[12]"]


def test_a_container_that_ends_meanwhile_is_missed_as_a_file(container: Container, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        describe(container, Host(tmp_path / "host").places, tmp_path / "elsewhere")


def test_a_container_whose_first_process_has_ended_its_first_thread_is_described_by_another(tmp_path: Path) -> None:
    """CRIU says that it cannot dump it; taken for one that has ended, it would be left out of the dump."""
    host = Host(tmp_path)
    with without_first_thread() as process:
        host.container("a", state=state(pid=process.pid))
        (container,) = Bundles(host.places).workload_containers("p1")
        tree = describe(container, host.places)
        assert tree.root_pid == process.pid
        assert f"net[{Path('/proc/self/ns/net').stat().st_ino}]:extRootNetNS" in tree.externals
        assert json.loads(tree.notes["descriptors.json"])[0] == str(Path("/proc/self/fd/0").readlink())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            describe(container, host.places)


def test_the_freezer_of_each_generation_of_cgroups() -> None:
    assert freezer_of(State(1, 1, {"freezer": "/f", "": "/u"})) == Path("/f")
    assert freezer_of(State(1, 1, {"": "/u"})) == Path("/u")


OF_THE_TENANT = "473 1 0:99 / / rw - overlay overlay rw,lowerdir=/a,upperdir=/etc/kubernetes,workdir=/w\n"


def test_an_overlay_that_a_process_has_mounted_as_its_root_is_not_taken_for_the_containers(
    container: Container, proc: Path, tmp_path: Path
) -> None:
    """Its upper directory is named as the process sees it: on the host that is another folder."""
    table = proc / str(container.pid) / "mountinfo"
    table.write_text(OF_THE_TENANT + table.read_text())
    tree = describe(container, Host(tmp_path / "host").places, proc)
    assert tree.changes == tmp_path / "host/snap/3 7/fs"


def test_a_root_that_is_no_overlay_has_no_changes_of_its_own() -> None:
    assert upper_directory("1 0 254:0 / / rw - ext4 /dev/vda rw\n", os.makedev(254, 0)) is None
    assert upper_directory("1 0 0:9 / / ro - overlay overlay ro,lowerdir=/a:/b\n", os.makedev(0, 9)) is None
    assert upper_directory("1 0 0:9 / / rw - overlay overlay rw,upperdir=/a\n", os.makedev(0, 8)) is None


def test_mount_points_with_spaces() -> None:
    assert list(mount_points("1 0 254:0 / /a\\040b rw - ext4 /dev/vda rw\n")) == ["/a b"]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/plain/file", "/plain/file"),
        ("/absolute/x", "/target/x"),
        ("/relative/x", "/target/x"),
        ("/escape/x", "/x"),
        ("/loop/x", "/loop/x"),
        ("/absent/../x", "/x"),
    ],
)
def test_links_lead_inside(tmp_path: Path, path: str, place: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "absolute").symlink_to("/target")
    (tmp_path / "relative").symlink_to("target")
    (tmp_path / "escape").symlink_to("../../../../..")
    (tmp_path / "loop").symlink_to("loop")
    assert resolve_inside(tmp_path, path) == place
