"""Files of a volume that outlives its pod, exchanged for others while the pod is away."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler.plan import read_result
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES
from tests.integration.cluster.node.pods import Pod, until
from tests.integration.cluster.node.restoring.conftest import Site

pytestmark = pytest.mark.criu

TENANT, NEIGHBOUR, GROUP = 1000, 2000, 3000
OWN, SECRET = "what is mine", "not for them"

READER = """
import array, mmap, os, socket, time
{opened}
while not os.path.exists("/claim/go"):
    print("waits")
    time.sleep(0.02)
print({read})
time.sleep(60)
"""
SEND = """\
one, other = socket.socketpair()
with open("/claim/kept/own") as file: other.sendmsg([b"x"], [(1, 1, array.array("i", [file.fileno()]))])
"""
MAP = """\
with open("/claim/kept/own") as file: mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
"""
SENT, DELETED = "sent descriptor", "deleted descriptor"
OPENED = {
    "descriptor": ('file = open("/claim/kept/own")', "file.read()"),
    "descriptor of a folder": ('folder = os.open("/claim/kept", os.O_RDONLY)', "*os.listdir(folder)"),
    "mapping": (MAP, "mapped[:].decode()"),
    DELETED: ('file = open("/claim/kept/own"); os.unlink("/claim/kept/own")', "file.read()"),
    SENT: (SEND, 'open(int.from_bytes(one.recvmsg(1, 64)[1][0][2], "little")).read()'),
}
"""How a process holds what it can read later; SOL_SOCKET and SCM_RIGHTS are 1."""


class Claim:
    """A volume that outlives pods, in which the tenant and a neighbour have folders of their own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder = site.folder / "claim"
        self.own, self.secret = self.folder / "kept/own", self.folder / "hidden/own"
        for path, owner, text in ((self.own, TENANT, OWN), (self.secret, NEIGHBOUR, SECRET)):
            path.parent.mkdir(parents=True)
            path.write_text(text)
            path.chmod(0o600)
            path.parent.chmod(0o700)
            for one in (path, path.parent):
                os.chown(one, owner, owner)

    def mount(self, spec: dict[str, Any]) -> None:
        """Of an unprivileged container of the tenant's."""
        user = {"uid": TENANT, "gid": TENANT, "additionalGids": [GROUP]}
        spec["process"] |= {"user": user, "noNewPrivileges": True, "capabilities": {}}
        options = ["rbind", "rprivate", "rw"]
        mount = {"destination": "/claim", "type": "bind", "source": str(self.folder), "options": options}
        spec["mounts"].append(mount)

    def save(self, how: str) -> Path:
        """A pod that holds the tenant's file, and its images as staged."""
        opened, read = OPENED[how]
        pod = self.site.node.pod("pod-1")
        pod.run("main", READER.format(opened=opened, read=read), change=self.mount).await_lines(3)
        return self.site.take(pod)

    def bring_back(self, images: Path) -> tuple[Pod, BaseException | None]:
        self.site.template = self.mount
        pod = self.site.replacement("pod-2", "main")
        error = self.site.bring_back(pod, images, "main")
        (self.folder / "go").touch()
        return pod, error


def last_line(pod: Pod) -> str:
    main = pod.containers["main"]
    until(lambda: main.lines[-1:] not in ([], ["waits"]), lambda: str(main.lines))
    return main.lines[-1]


@pytest.fixture
def claim(site: Site) -> Claim:
    return Claim(site)


def link(claim: Claim) -> None:
    claim.own.parent.rename(claim.folder / "away")
    claim.own.parent.symlink_to("hidden")


def exchange(claim: Claim) -> None:
    claim.secret.rename(claim.own)


@pytest.mark.parametrize("how", [how for how in OPENED if how not in (SENT, DELETED)])
def test_a_link_on_the_way_to_a_file_gives_nobody_what_it_leads_to(claim: Claim, how: str) -> None:
    images = claim.save(how)
    link(claim)

    pod, error = claim.bring_back(images)

    assert last_line(pod) == "cold"
    assert isinstance(error, RestoreError)
    assert "container main: /claim/kept" in str(error)
    assert "is another file than when the snapshot was taken: it leads to /claim/hidden" in str(error)
    assert "put back the file that was there, with its owner and mode" in str(error)
    result = read_result(str(claim.site.state / "pods/pod-2"), "main")
    assert result is not None
    assert (result.restored, result.cold) == (False, True)


def test_a_file_of_another_owner_is_not_what_it_was(claim: Claim) -> None:
    images = claim.save("descriptor")
    exchange(claim)
    pod, error = claim.bring_back(images)
    assert last_line(pod) == "cold"
    assert f"holds as its descriptor 3, is another file than when the snapshot was taken: owner {TENANT} in the" in str(
        error
    )


def test_a_file_on_its_way_between_processes_is_refused_because_nobody_sees_it(claim: Claim) -> None:
    images = claim.save(SENT)
    link(claim)
    claim.site.template = claim.mount
    pod = claim.site.replacement("pod-2", "main")
    with pytest.raises(RestoreError, match="/claim/kept/own was on its way from one process to another"):
        claim.site.refuse(pod, images)


@pytest.mark.parametrize("how", [how for how in OPENED if how not in (SENT, DELETED)])
def test_a_volume_that_was_copied_and_belongs_to_the_pods_group_now_is_the_same(claim: Claim, how: str) -> None:
    """As another driver mounts it elsewhere: other inodes, and the kubelet gives it the pod's `fsGroup`."""
    images = claim.save(how)
    before = claim.folder.rename(claim.site.folder / "before")
    subprocess.run(["cp", "--archive", before, claim.folder], check=True)
    for path in (claim.own, claim.own.parent):
        os.chown(path, TENANT, GROUP)

    pod, error = claim.bring_back(images)

    assert error is None
    assert last_line(pod) == (OWN if how != "descriptor of a folder" else "own")


def test_a_deleted_file_comes_out_of_the_snapshot_whoever_has_its_name(claim: Claim) -> None:
    images = claim.save(DELETED)
    claim.own.write_text(SECRET)
    pod, error = claim.bring_back(images)
    assert error is None
    assert last_line(pod) == OWN


def test_a_snapshot_that_does_not_say_what_was_open_is_refused_in_words(claim: Claim) -> None:
    images = claim.save("descriptor")
    (images / "main" / VOLUME_FILES).unlink()
    _, error = claim.bring_back(images)
    assert "the snapshot does not say which files of volumes its processes held" in str(error)
