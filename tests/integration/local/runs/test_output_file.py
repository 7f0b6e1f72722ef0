"""Output files are opened with no more rights than the job's user has, and what exists keeps its owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cedana_sched.local.runs.output_file import OutputUser, open_output_file
from cedana_sched.model.errors import UsageError

if TYPE_CHECKING:
    from tests.integration.local.runs.conftest import Lab

NOBODY = OutputUser(65534, 65534, (65534,))
ROOT = OutputUser(0, 0, (0,))
NULL = Path("/dev/null")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of the job's user, below folders that all may enter."""
    for parent in (tmp_path, *tmp_path.parents[:-1]):
        parent.chmod(parent.stat().st_mode | 0o711)
    own = tmp_path / "own"
    own.mkdir()
    os.chown(own, NOBODY.uid, NOBODY.gid)
    return own


def append(path: Path, user: OutputUser, text: str = "x", engines: Path | None = None) -> None:
    descriptor = open_output_file("stdout", path, user, engines)
    assert os.get_blocking(descriptor)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def refusal(path: Path, user: OutputUser, engines: Path | None = None) -> UsageError:
    with pytest.raises(UsageError) as refused:
        open_output_file("stderr", path, user, engines)
    assert (os.geteuid(), os.getegid()) == (0, 0)
    assert (refused.value.field, refused.value.value) == ("stderr", str(path))
    assert refused.value.remedy
    return refused.value


def owner(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid


def test_links_of_the_user_lead_root_to_no_file_of_root(folder: Path, tmp_path: Path) -> None:
    (folder / "new").symlink_to(tmp_path / "new")
    (tmp_path / "secret").write_text("kept")
    (folder / "old").symlink_to(tmp_path / "secret")
    (folder / "on-the-way").symlink_to(tmp_path)
    for path in (folder / "new", folder / "old", folder / "on-the-way" / "secret"):
        assert "Permission denied" in refusal(path, NOBODY).message
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "secret").read_text() == "kept"


def test_folder_that_the_user_may_not_write_gets_no_file(folder: Path, tmp_path: Path) -> None:
    assert "Permission denied" in refusal(tmp_path / "out", NOBODY).message
    assert "Permission denied" in refusal(tmp_path / "deep" / "out", NOBODY).message
    assert list(tmp_path.iterdir()) == [folder]


def test_new_file_and_its_folders_belong_to_the_user(folder: Path) -> None:
    append(folder / "a" / "b" / "out", NOBODY)
    made = (folder / "a", folder / "a" / "b", folder / "a" / "b" / "out")
    assert [owner(path) for path in made] == [(NOBODY.uid, NOBODY.gid)] * 3


def test_users_file_is_appended_to(folder: Path) -> None:
    (folder / "out").write_text("before, ")
    os.chown(folder / "out", NOBODY.uid, NOBODY.gid)
    append(folder / "out", NOBODY, "after")
    assert (folder / "out").read_text() == "before, after"


@pytest.mark.parametrize("user", [NOBODY, ROOT])
def test_what_exists_keeps_its_owner(user: OutputUser, folder: Path) -> None:
    shared = folder / "shared"
    shared.touch()
    shared.chmod(0o666)
    os.chown(shared, 1234, 1234)
    for path in (shared, NULL):
        before = owner(path)
        append(path, user)
        assert owner(path) == before


def test_file_of_a_group_of_the_user_is_opened(folder: Path) -> None:
    shared = folder / "shared"
    shared.touch()
    shared.chmod(0o660)
    os.chown(shared, 0, 4321)
    refusal(shared, NOBODY)
    append(shared, NOBODY._replace(groups=(65534, 4321)))


def test_file_that_the_engine_chose_is_given_to_the_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for _ in range(2):
        append(tmp_path / "stdout", NOBODY, engines=tmp_path)
        assert owner(tmp_path / "stdout") == (NOBODY.uid, NOBODY.gid)
    assert (tmp_path / "stdout").read_text() == "xx"


def test_state_directory_of_the_engine_may_be_below_a_link_of_another_user(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (folder / "link").symlink_to(tmp_path / "state")
    os.chown(folder / "link", NOBODY.uid, NOBODY.gid, follow_symlinks=False)
    append(folder / "link" / "stdout", ROOT, engines=folder / "link")
    assert (tmp_path / "state" / "stdout").read_text() == "x"


def test_jobs_of_root_follow_links_of_root_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "ours").symlink_to("secret")
    (tmp_path / "here").symlink_to(tmp_path)
    for link, target in (("theirs", tmp_path / "secret"), ("on-the-way", tmp_path)):
        (folder / link).symlink_to(target)
        os.chown(folder / link, NOBODY.uid, NOBODY.gid, follow_symlinks=False)
    for path in (folder / "theirs", folder / "on-the-way" / "secret", folder / "on-the-way" / "new"):
        assert f"is a link of user {NOBODY.uid}" in refusal(path, ROOT).message
    assert (tmp_path / "secret").read_text() == "kept"
    append(tmp_path / "here" / "own" / ".." / "ours", ROOT, ", and more")
    append(tmp_path / "here" / "deep" / "out", ROOT)
    assert (tmp_path / "secret").read_text() == "kept, and more"
    assert (tmp_path / "deep" / "out").read_text() == "x"
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refusal(tmp_path / "loop", ROOT).message
    assert "directory" in refusal(tmp_path, ROOT).message
    assert "irectory" in refusal(tmp_path / "secret" / "below", ROOT).message


@pytest.mark.parametrize("user", [NOBODY, ROOT])
def test_fifo_without_a_reader_is_refused_instead_of_waited_for(user: OutputUser, folder: Path) -> None:
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    os.chown(fifo, user.uid, user.gid)
    assert "FIFO that no process reads" in refusal(fifo, user).message
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    append(fifo, user, "read")
    assert os.read(reader, 99) == b"read"
    os.close(reader)


async def test_job_with_the_output_of_another_user_does_not_start_and_says_why(lab: Lab) -> None:
    secret = lab.state / "secret"
    secret.write_text("kept")
    lab.state.chmod(0o711)
    record = await lab.run(lab.shell("denied", "echo lost", user="nobody", stderr=secret))
    assert record.failure is not None
    assert record.failure.message.startswith(f"stderr: '{secret}' cannot be opened by user 65534")
    assert "name a file that user 65534 may write" in record.failure.remedy
    assert secret.read_text() == "kept"


@pytest.mark.parametrize("terminal", [False, True])
async def test_device_as_the_output_of_a_user_stays_roots(terminal: bool, lab: Lab) -> None:
    fields = {"stdout": NULL, "stderr": NULL, "user": "nobody", "has_terminal": terminal}
    record = await lab.run(lab.shell("null", "echo lost", **fields))
    assert (record.exit_code, record.failure) == (0, None)
    assert owner(NULL) == (0, 0)
    assert stat.S_IMODE(NULL.stat().st_mode) == 0o666


async def test_job_without_a_reader_of_its_fifo_ends_and_says_why(lab: Lab) -> None:
    fifo = lab.state / "fifo"
    os.mkfifo(fifo)
    record = await lab.run(lab.shell("fifo", "echo lost", stdout=fifo))
    assert record.failure is not None
    assert record.failure.message == f"stdout: '{fifo}' is a FIFO that no process reads"
