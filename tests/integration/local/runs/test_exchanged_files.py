"""The user of a job exchanges its files for others while the job is a snapshot: root must not open those for it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs import restore_preparation
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.runtime_handler.volume_file_comparison import VOLUME_FILES, read_record

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

pytestmark = pytest.mark.criu

NOBODY = pwd.getpwnam("nobody")
PROGRAM = Path("/usr/bin/python3").resolve()
OWN, SECRET = "what is mine\n", "root's alone\n"

HOLDING = """
import array, mmap, os, socket, time
os.chdir("{home}")
{opened}
print("holds", flush=True)
while not os.path.exists("{home}/go"):
    time.sleep(0.02)
print({used}, flush=True)
time.sleep(60)
"""
OPENED = {
    "descriptor": ('file = open("kept/own", "r+")', 'os.write(file.fileno(), b"mine")'),
    "appending": ('file = open("kept/own", "a")', 'os.write(file.fileno(), b"mine")'),
    "mapping": ('with open("kept/own", "r+") as file: area = mmap.mmap(file.fileno(), 0)', 'area.write(b"mine")'),
    "program": ("", "len(open('/proc/self/exe', 'rb').read(4))"),
    "folder": ('folder = os.open("kept", os.O_RDONLY)', "2 * len(os.listdir(folder))"),
    "directory": ('os.chdir("kept")', "2 * len(os.listdir())"),
}
"""How a process holds what it can use later; each use prints 4."""
FOLDERS = ("folder", "directory")
SOCKET_BY_LINK = "socket by a link"
SOCKET, DELETED, SENT, SENT_OF_ROOTS = "socket", "deleted file", "sent descriptor", "sent descriptor of root's"
BIND_BY_LINK = """\
os.mkdir("scratch"); os.symlink("{home}/scratch", "cache")
server = socket.socket(socket.AF_UNIX); server.bind("{home}/cache/socket")
"""
CREATED = {
    SOCKET: ('server = socket.socket(socket.AF_UNIX); server.bind("{home}/kept/socket")', '"used"'),
    SOCKET_BY_LINK: (BIND_BY_LINK, '"used"'),
    DELETED: ('file = open("kept/own"); os.unlink("kept/own")', '"used"'),
}
"""What CRIU creates or removes by a name."""
SEND = """\
one, other = socket.socketpair()
with open("kept/own") as file: other.sendmsg([b"x"], [(1, 1, array.array("i", [file.fileno()]))])
"""
SEND_OF_ROOTS = """\
one, other = socket.socketpair()
with open("/dev/null") as null, open("/usr/bin/env") as file:
    other.sendmsg([b"x"], [(1, 1, array.array("i", [null.fileno(), file.fileno()]))])
"""


class Home:
    """A folder of the job's user, and one of root's alone with the same in it."""

    def __init__(self, folder: Path, lab: Lab) -> None:
        self.folder = folder
        self.lab = lab
        self.images = folder
        self.kept, self.hidden = folder / "kept", folder / "hidden"
        for path, user, text in ((self.kept, NOBODY.pw_uid, OWN), (self.hidden, 0, SECRET)):
            path.mkdir()
            (path / "own").write_text(text)
            (path / "own").chmod(0o600)
            shutil.copy(PROGRAM, path / "program")
            path.chmod(0o700)
            for one in (path / "own", path / "program", path):
                os.chown(one, user, NOBODY.pw_gid if user else 0)
        os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
        folder.chmod(0o755)

    async def save(self, how: str, user: str = "nobody") -> tuple[WorkloadRef, Callable[[], Awaitable[None]]]:
        """Start a job that holds files so, and make a snapshot of it; return what restores it."""
        opened, used = (OPENED | CREATED | {SENT: (SEND, '"used"'), SENT_OF_ROOTS: (SEND_OF_ROOTS, '"used"')})[how]
        program = str(self.kept / "program" if how == "program" else PROGRAM)
        script = HOLDING.format(home=self.folder, opened=opened.format(home=self.folder), used=used)
        run = self.lab.job("held-0", program, "-c", script, user=user)
        await self.lab.runtime.start_cold(run, None)
        await self.lab.printed(run.uid, 1)
        self.images, facts = await self.lab.dump(run)
        images = self.images
        await self.lab.runtime.kill(run.uid)
        successor = self.lab.again("held-1", run)
        return successor, lambda: self.lab.runtime.restore_from_images(successor, images, facts)


@pytest.fixture
def home(lab: Lab) -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="home-"))  # the folders of pytest are root's alone
    yield Home(folder, lab)
    shutil.rmtree(folder)


def link_folder(home: Home) -> None:
    home.kept.rename(home.folder / "away")
    home.kept.symlink_to("hidden")


def link_files(home: Home) -> None:
    for name in ("own", "program"):
        (home.kept / name).unlink()
        (home.kept / name).symlink_to(home.hidden / name)


def link_files_hard(home: Home) -> None:
    for name in ("own", "program"):
        (home.kept / name).unlink()
        os.link(home.hidden / name, home.kept / name)


def copy(home: Home) -> None:
    before = home.kept.rename(home.folder / "before")
    subprocess.run(["cp", "--archive", before, home.kept], check=True)


EXCHANGES = [(how, link_folder) for how in OPENED] + [
    (how, exchange) for how in OPENED if how not in FOLDERS for exchange in (link_files, link_files_hard)
]


@pytest.mark.parametrize(("how", "exchange"), EXCHANGES, ids=lambda one: getattr(one, "__name__", one))
async def test_the_user_of_a_job_gets_no_file_of_roots(
    home: Home, how: str, exchange: Callable[[Home], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it were exchanged after its name was examined."""
    monkeypatch.setattr(restore_preparation, "require_names_of_roots", lambda *_: None)
    successor, restore = await home.save(how)
    exchange(home)

    with pytest.raises(RestoreError) as caught:
        await restore()

    where = "owner 65534 in the snapshot, 0 now" if exchange is link_files_hard else f"it leads to {home.hidden}"
    assert f"{home.kept}" in caught.value.message
    assert f"is another file than when the snapshot was taken: {where}" in caught.value.message
    assert "put back the file that was there" in caught.value.remedy
    assert await home.lab.runtime.find_running(successor) is None
    assert (home.hidden / "own").read_text() == SECRET


@pytest.mark.parametrize("how", ["descriptor", SOCKET, DELETED])
async def test_nothing_of_roots_is_opened_or_removed_by_a_link(home: Home, how: str) -> None:
    successor, restore = await home.save(how)
    link_folder(home)
    before = sorted(path.name for path in home.hidden.iterdir())

    with pytest.raises(RestoreError) as caught:
        await restore()

    assert f"{home.kept}/" in caught.value.message
    assert f"it leads to {home.hidden}/" in caught.value.message
    assert f"by the link {home.kept}" in caught.value.message
    assert sorted(path.name for path in home.hidden.iterdir()) == before
    assert await home.lab.runtime.find_running(successor) is None


async def test_no_socket_is_created_in_a_folder_of_roots_by_the_users_link(home: Home) -> None:
    _, restore = await home.save(SOCKET_BY_LINK)
    (home.folder / "cache").unlink()
    (home.folder / "cache").symlink_to(home.hidden)
    os.chown(home.folder / "cache", NOBODY.pw_uid, NOBODY.pw_gid, follow_symlinks=False)
    with pytest.raises(RestoreError, match="another file than when the snapshot was taken: it leads to"):
        await restore()
    assert not (home.hidden / "socket").exists()


async def test_a_file_on_its_way_between_processes_cannot_be_verified(home: Home) -> None:
    _, restore = await home.save(SENT)
    with pytest.raises(RestoreError, match="kept/own was on its way from one process to another"):
        await restore()


async def test_files_of_roots_may_be_on_their_way_between_processes(home: Home) -> None:
    successor, restore = await home.save(SENT_OF_ROOTS)
    await restore()
    (home.folder / "go").touch()
    await home.lab.printed(successor.uid, 2)


@pytest.mark.parametrize("how", CREATED)
async def test_sockets_and_deleted_files_in_folders_of_the_user_are_restored(home: Home, how: str) -> None:
    successor, restore = await home.save(how)
    await restore()
    (home.folder / "go").touch()
    await home.lab.printed(successor.uid, 2)


async def test_a_snapshot_without_a_record_is_refused_if_a_user_could_replace_a_file(home: Home) -> None:
    _, restore = await home.save("descriptor")
    (home.images / VOLUME_FILES).unlink()
    with pytest.raises(RestoreError, match="does not record which files the job held") as caught:
        await restore()
    assert f"may have replaced {home.folder}" in caught.value.message


async def test_a_snapshot_without_a_record_is_restored_if_its_processes_are_roots(home: Home) -> None:
    successor, restore = await home.save("descriptor", user="root")
    (home.images / VOLUME_FILES).unlink()
    await restore()
    (home.folder / "go").touch()
    await home.lab.printed(successor.uid, 2)


@pytest.mark.parametrize("how", ["descriptor", "mapping"])
@pytest.mark.parametrize("exchange", [link_folder, link_files])
async def test_no_file_of_roots_is_truncated(home: Home, how: str, exchange: Callable[[Home], None]) -> None:
    _, restore = await home.save(how)
    exchange(home)
    (home.hidden / "own").write_text(3 * SECRET)

    with pytest.raises(RestoreError, match="is another file than when the snapshot was taken: it leads to"):
        await restore()

    assert (home.hidden / "own").read_text() == 3 * SECRET


@pytest.mark.parametrize("how", ["descriptor", "mapping"])
async def test_a_file_that_has_grown_is_truncated_before_the_job_continues(home: Home, how: str) -> None:
    _, restore = await home.save(how)
    with (home.kept / "own").open("a") as file:
        file.write("ahead")
    await restore()
    assert (home.kept / "own").read_text() == OWN


@pytest.mark.parametrize("how", OPENED)
async def test_files_that_were_copied_are_the_same(home: Home, how: str) -> None:
    """As from a backup: other inodes, and the owner and mode that they had."""
    successor, restore = await home.save(how)
    copy(home)

    await restore()

    (home.folder / "go").touch()
    assert (await home.lab.printed(successor.uid, 2))[-1] == "4\n"


EVERYTHING = """
import mmap, os, socket, tempfile, time
deleted = tempfile.TemporaryFile("w+")
deleted.write("kept")
deleted.flush()
memory = os.memfd_create("memory")
shared = mmap.mmap(-1, 4096)
with open("/dev/shm/one", "w+") as file:
    file.truncate(4096)
    named = mmap.mmap(file.fileno(), 4096)
fork = os.fork()
kept = [open(path) for path in ("/proc/self/status", "/dev/null", "/etc/passwd")]
pair, pipe = socket.socketpair(), os.pipe()
while True:
    if fork:
        print("runs", flush=True)
    time.sleep(0.02)
"""


async def test_what_the_snapshot_contains_is_no_file_of_the_host(lab: Lab) -> None:
    run = lab.job("all-0", str(PROGRAM), "-c", EVERYTHING, user="nobody")
    await lab.runtime.start_cold(run, None)
    for generation in (1, 2):
        await lab.printed(run.uid, len(lab.lines(run.uid)) + 2)
        run = await lab.next_generation(run, f"all-{generation}")
    await lab.printed(run.uid, len(lab.lines(run.uid)) + 2)
    images = lab.state / "images/all-1"
    held = read_record(str(images))
    assert held is not None
    assert set(held.saved) >= {"/proc", "/sys", "/dev/pts", "/dev/shm"}
    paths = {one.path for one in held.files}
    assert {"/", "/etc/passwd", "/dev/null", str(PROGRAM)} <= paths
    assert not [path for path in paths if path.startswith(("/dev/shm", "/memfd", "/dev/zero", "/proc", "/dev/mqueue"))]
