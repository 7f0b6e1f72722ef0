"""Which of the submitter's variables a job gets."""

from __future__ import annotations

import pytest

from cedana_sched.cli.job_environment import export_environment, parse_assignments
from cedana_sched.model.errors import UsageError

CALLER = {
    "PATH": "/venv/bin:/usr/bin",
    "HOME": "/root",
    "XDG_RUNTIME_DIR": "/run/user/0",
    "CEDANA_SCHED_STATE_DIR": "/state",
    "CEDANA_CHECKPOINT": "outer",
    "NOTIFY_SOCKET": "/run/notify",
    "LISTEN_FDS": "1",
    "PWD": "/here",
    "TMUX": "/tmp/tmux",
}


@pytest.mark.parametrize(
    ("export", "wanted"),
    [
        (None, {"PATH": "/venv/bin:/usr/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"}),
        ("ALL", {"PATH": "/venv/bin:/usr/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0"}),
        ("NONE", {}),
        ("HOME", {"HOME": "/root"}),
        ("HOME,A=1=2,B=", {"HOME": "/root", "A": "1=2", "B": ""}),
        (
            "ALL,PATH=/bin,TMUX",
            {"PATH": "/bin", "HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0", "TMUX": "/tmp/tmux"},
        ),
    ],
)
def test_export_selects_as_sbatch_does(export: str | None, wanted: dict[str, str]) -> None:
    assert export_environment(export, CALLER).variables == wanted


@pytest.mark.parametrize(
    ("export", "wanted"), [(None, {}), ("ALL", {"PATH": "/venv/bin:/usr/bin"}), ("HOME", {"HOME": "/root"})]
)
def test_another_user_gets_no_login_of_the_submitter(export: str | None, wanted: dict[str, str]) -> None:
    assert export_environment(export, CALLER, as_another_user=True).variables == wanted


@pytest.mark.parametrize(
    ("export", "value", "problem"),
    [
        ("", "", "has no name"),
        ("=x", "=x", "has no name"),
        ("ALL,", "", "has no name"),
        ("UNSET", "UNSET", "is not set here"),
        ("A=1,A=2", "A=2", "second value"),
        ("NONE,HOME", "NONE,HOME", "beside others"),
        ("CEDANA_SCHED_STATE_DIR", "CEDANA_SCHED_STATE_DIR", "the engine's own"),
        ("A=na\udcefve", "A", "not UTF-8"),
    ],
)
def test_wrong_exports_are_refused(export: str, value: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        export_environment(export, CALLER)
    assert (caught.value.field, caught.value.value) == ("export", value)
    assert caught.value.remedy


def test_a_variable_without_value_is_passed_on() -> None:
    assert parse_assignments("env", ["HOME", "A=", "B=x"], {"HOME": "/root"}) == {"HOME": "/root", "A": "", "B": "x"}


@pytest.mark.parametrize("assignments", [["=x"], ["UNSET"], ["A=1", "A=2"]])
def test_wrong_variables_are_refused(assignments: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_assignments("env", assignments, {})
    assert caught.value.field == "env"
