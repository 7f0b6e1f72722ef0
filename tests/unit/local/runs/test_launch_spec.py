"""What is wrong with a job is said by field before anything runs."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cedana_sched.local.runs import launch_spec
from cedana_sched.local.runs.launch_spec import LaunchSpec, create_launch_task, create_output_directories, install_tini
from cedana_sched.model.errors import UsageError
from cedana_sched.snapshot.external_mounts import Externals
from cedana_sched.snapshot.launch import Job


def task(tmp_path: Path, **fields: Any) -> Job:
    usual: dict[str, Any] = {"argv": ("sh",), "stdout": tmp_path / "o", "stderr": tmp_path / "o", "directory": tmp_path}
    return create_launch_task(LaunchSpec(**(usual | fields)), Path("/tini"), tmp_path, Externals())


def test_job_gets_its_users_environment_and_its_own_wins(tmp_path: Path) -> None:
    made = task(tmp_path, user="nobody", environment={"HOME": "/elsewhere", "COLOUR": "blue"})
    account = pwd.getpwnam("nobody")
    assert made.environment["USER"] == "nobody"
    assert made.environment["HOME"] == "/elsewhere"
    assert made.environment["COLOUR"] == "blue"
    assert (made.uid, made.gid) == (account.pw_uid, account.pw_gid)
    assert account.pw_gid in made.groups


def test_job_begins_in_its_users_home_by_default(tmp_path: Path) -> None:
    assert task(tmp_path, directory=None).directory == pwd.getpwuid(os.geteuid()).pw_dir


def test_user_may_be_a_number(tmp_path: Path) -> None:
    assert task(tmp_path, user=str(pwd.getpwnam("nobody").pw_uid)).environment["USER"] == "nobody"


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"user": "no-such-user"}, "user", "no-such-user"),
        ({"argv": ()}, "argv", []),
        ({"argv": ("no-such-program",)}, "argv", "no-such-program"),
        ({"argv": ("sh",), "environment": {"PATH": "/nowhere"}}, "argv", "sh"),
        ({"directory": Path("/no/such/folder")}, "cwd", "/no/such/folder"),
    ],
)
def test_what_cannot_run_is_named_with_a_remedy(
    tmp_path: Path, fields: dict[str, Any], field: str, value: object
) -> None:
    with pytest.raises(UsageError) as caught:
        task(tmp_path, **fields)
    assert (caught.value.field, caught.value.value) == (field, value)
    assert caught.value.remedy


def test_relative_program_is_looked_up_in_the_jobs_directory(tmp_path: Path) -> None:
    program = tmp_path / "run.sh"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="not executable"):
        task(tmp_path, argv=("./run.sh",))
    program.chmod(0o755)
    assert task(tmp_path, argv=("./run.sh",)).command == ("./run.sh",)


def test_job_with_a_terminal_has_a_type_for_it_unless_it_brings_one(tmp_path: Path) -> None:
    assert "TERM" not in task(tmp_path).environment
    assert task(tmp_path, has_terminal=True).environment["TERM"] == "xterm"
    assert task(tmp_path, has_terminal=True, environment={"TERM": "dumb"}).environment["TERM"] == "dumb"


def test_terminal_needs_util_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_spec, "SETSID", "/nowhere/setsid")
    with pytest.raises(UsageError) as caught:
        task(tmp_path, has_terminal=True)
    assert caught.value.field == "tty"
    assert "util-linux" in caught.value.remedy


def test_tini_keeps_its_place_over_versions(tmp_path: Path) -> None:
    source = tmp_path / "tini"
    source.write_bytes(b"one")
    first = install_tini(source, tmp_path / "programs")
    assert install_tini(source, tmp_path / "programs") == first
    source.write_bytes(b"two")
    second = install_tini(source, tmp_path / "programs")
    assert (first.read_bytes(), second.read_bytes()) == (b"one", b"two")
    assert os.access(second, os.X_OK)


def test_only_folder_that_the_engine_chose_is_created(tmp_path: Path) -> None:
    spec = LaunchSpec(argv=("sh",), stdout=tmp_path / "a" / "out", stderr=tmp_path / "engine" / "1" / "err")
    create_output_directories(spec)
    assert list(tmp_path.iterdir()) == []
    create_output_directories(replace(spec, engines_folder=tmp_path / "engine" / "1"))
    assert spec.stderr.parent.is_dir()
    assert not spec.stdout.parent.exists()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("#  File generated\nLANG=C.UTF-8\nLC_ALL=x\n", {"LANG": "C.UTF-8"}),
        ('LANG="de_DE.UTF-8"\n', {"LANG": "de_DE.UTF-8"}),
        ("", {}),
        ("LANG=$(reboot)\n", {}),
    ],
)
def test_language_is_the_machines_as_at_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, wanted: dict[str, str]
) -> None:
    file = tmp_path / "locale"
    file.write_text(text)
    monkeypatch.setattr(launch_spec, "LOCALE_FILES", (tmp_path / "none", file))
    environment = task(tmp_path).environment
    assert {name: value for name, value in environment.items() if name == "LANG"} == wanted


def test_relative_places_of_path_are_below_the_jobs_directory(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "simulate"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert task(tmp_path, argv=("simulate",), environment={"PATH": "bin:/usr/bin"}).command == ("simulate",)
