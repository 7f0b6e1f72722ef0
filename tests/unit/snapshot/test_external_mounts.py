"""Which of the host's mounts a job sees."""

from __future__ import annotations

from cedana_sched.snapshot.external_mounts import Externals, host_externals

MOUNTINFO = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw
26 24 0:24 / /dev/pts rw,relatime - devpts devpts rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 23 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro
29 28 0:26 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
30 27 0:27 / /run rw shared:5 - tmpfs tmpfs rw
31 30 0:28 / /run/user/1000 rw - tmpfs tmpfs rw
32 30 0:4 net:[4026532201] /run/netns/blue rw - nsfs nsfs rw
33 27 8:1 / /home rw - ext4 /dev/sda1 rw
34 27 0:40 / /data/my\040files rw - nfs4 server:/files rw
35 27 0:41 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
36 27 0:42 / /mnt/auto rw - autofs systemd-1 rw
37 27 8:1 /sub /home rw - ext4 /dev/sda1 rw
"""


def test_real_mounts_are_taken_and_others_left() -> None:
    assert host_externals(MOUNTINFO).mounts == ("/data/my files", "/dev", "/home", "/run")


def test_dev_is_always_there() -> None:
    only_root = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
    assert host_externals(only_root) == Externals()
    assert Externals().criu_external_values() == ("mnt[/dev]:/dev",)


def test_mounted_folders_may_have_any_name() -> None:
    odd = b"38 27 8:1 /a\rb /mnt/\xff rw - ext4 /dev/sda1 rw\n39 27 8:1 /a\x0cb /mnt/\x1c\xc2\xa0 rw - ext4 x rw\n"
    found = host_externals(MOUNTINFO + odd.decode(errors="surrogateescape")).mounts
    assert found == ("/data/my files", "/dev", "/home", "/mnt/\x1c\xa0", "/mnt/\udcff", "/run")


def test_this_machine_can_be_read() -> None:
    found = host_externals()
    assert "/" not in found.mounts
    assert not any(path.startswith("/proc") for path in found.mounts)
