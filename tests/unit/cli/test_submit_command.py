import os
from pathlib import Path

import msgspec
import pytest

from cedana_sched.cli.submit import choose_checkpoint_id
from cedana_sched.local.views import Problem, Submission
from cedana_sched.model.errors import UsageError

from .conftest import Cli
from .fake_engine import FakeEngine, a_job


def submitted(engine: FakeEngine) -> Submission:
    (_, submission) = engine.requests[-1]
    assert isinstance(submission, Submission)
    return submission


def test_prints_only_the_uid_so_that_scripts_can_keep_it(engine: FakeEngine, cli: Cli) -> None:
    result = cli("submit", "--group", "bio", "--", "gmx", "mdrun", "-v")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "new1\n", "")
    assert submitted(engine).argv == ("gmx", "mdrun", "-v")


def test_options_after_the_command_belong_to_the_command(engine: FakeEngine, cli: Cli) -> None:
    cli("submit", "--group", "bio", "python3", "-c", "pass", "--group", "other")
    assert submitted(engine).argv == ("python3", "-c", "pass", "--group", "other")
    assert submitted(engine).group == "bio"


def test_everything_that_was_written_arrives(engine: FakeEngine, cli: Cli) -> None:
    options = ("--id", "run-7", "--name", "n", "--cpus", "0.5", "--memory", "2Gi", "--priority", "-3")
    more = ("--replicas", "2", "-e", "A=1=2", "--cwd", "/srv", "--user", "bob", "--deadline", "5m", "--tty")
    cli("submit", "-g", "bio", *options, *more, "--on-volume-change", "Fail", "--", "true")
    assert submitted(engine) == Submission(
        argv=("true",),
        group="bio",
        name="n",
        id="run-7",
        cpus="0.5",
        memory="2Gi",
        priority=-3,
        replicas=2,
        env={"A": "1=2"},
        cwd="/srv",
        user="bob",
        deadline_seconds=300.0,
        on_volume_change="Fail",
        tty=True,
    )


def test_without_cwd_the_job_runs_where_it_was_submitted(engine: FakeEngine, cli: Cli) -> None:
    cli("submit", "-g", "bio", "--", "true")
    assert submitted(engine).cwd == str(Path.cwd())


def test_a_refused_field_is_named_with_its_remedy(engine: FakeEngine, cli: Cli) -> None:
    engine.problem = (400, Problem("group: 'x' is unknown", "use one of bio, ml", "group"))
    result = cli("submit", "-g", "x", "--", "true")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == "error: group: 'x' is unknown\nremedy: use one of bio, ml\n"


def test_json_errors_are_problems_on_stderr(engine: FakeEngine, cli: Cli) -> None:
    engine.problem = (400, Problem("group: 'x' is unknown", "use one of bio, ml", "group"))
    result = cli("submit", "-o", "json", "-g", "x", "--", "true")
    problem = msgspec.json.decode(result.stderr.encode(), type=Problem)
    assert problem == Problem("group: 'x' is unknown", "use one of bio, ml", "group", "UsageError")


def test_wait_returns_what_became_of_the_job(engine: FakeEngine, cli: Cli) -> None:
    engine.on_watch = lambda: engine.put(a_job(uid="new1", phase="Failed", why="exit code 3", exit_code=3))
    result = cli("submit", "-g", "bio", "--wait", "--", "false")
    assert result.exit_code == 1
    assert "job md ended as Failed: exit code 3" in result.stderr


def test_the_callers_variable_is_the_default_id(engine: FakeEngine, cli: Cli) -> None:
    cli("submit", "-g", "bio", "--", "true", env={"CEDANA_CHECKPOINT": "outer"})
    assert submitted(engine).id == "outer"


@pytest.mark.parametrize(
    ("option", "job", "caller", "wanted"),
    [
        (None, {}, {}, None),
        ("a", {}, {}, "a"),
        (None, {"CEDANA_CHECKPOINT": "b"}, {"CEDANA_CHECKPOINT": "c"}, "b"),
        ("a", {"CEDANA_CHECKPOINT": "a"}, {}, "a"),
        ("a", {}, {"CEDANA_CHECKPOINT": "c"}, "a"),
    ],
)
def test_the_id_comes_from_the_nearest_place(
    option: str | None, job: dict[str, str], caller: dict[str, str], wanted: str | None
) -> None:
    assert choose_checkpoint_id(option, job, caller) == wanted


@pytest.mark.parametrize(
    ("option", "job"), [("a", {"CEDANA_CHECKPOINT": "b"}), ("a b", {}), (None, {"CEDANA_CHECKPOINT": "../x"}), ("", {})]
)
def test_contradicting_or_illegal_ids_are_refused(option: str | None, job: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_checkpoint_id(option, job, {})
    assert caught.value.field == "id"


def test_the_submitters_environment_reaches_the_job_and_env_wins(engine: FakeEngine, cli: Cli) -> None:
    variables = {"VIRTUAL_ENV": "/v", "MODE": "fast", "CEDANA_SCHED_STORE": "/elsewhere"}
    cli("submit", "-g", "bio", "-e", "MODE=slow", "--", "true", env=variables)
    env = submitted(engine).env
    assert (env["VIRTUAL_ENV"], env["MODE"], env["PATH"]) == ("/v", "slow", os.environ["PATH"])
    assert "CEDANA_SCHED_STORE" not in env


def test_export_says_which_variables_the_job_gets(engine: FakeEngine, cli: Cli) -> None:
    cli("submit", "-g", "bio", "--export", "MODE,DEPTH=3", "--", "true", env={"MODE": "fast", "OTHER": "x"})
    assert submitted(engine).env == {"MODE": "fast", "DEPTH": "3"}


def test_another_users_job_gets_nothing_unless_told(engine: FakeEngine, cli: Cli) -> None:
    cli("submit", "-g", "bio", "--user", "bob", "--", "true", env={"AWS_SECRET_ACCESS_KEY": "secret"})
    assert submitted(engine).env == {}


def test_an_id_of_the_exported_list_counts_as_the_jobs(engine: FakeEngine, cli: Cli) -> None:
    cli("submit", "-g", "bio", "--export", "CEDANA_CHECKPOINT=inner", "--", "true", env={"CEDANA_CHECKPOINT": "outer"})
    assert submitted(engine).id == "inner"


def test_a_refused_export_names_field_value_and_remedy(engine: FakeEngine, cli: Cli) -> None:
    result = cli("submit", "-g", "bio", "--export", "CEDANA_SCHED_STORE=x", "--", "true")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: export: 'CEDANA_SCHED_STORE=x' is the engine's own\nremedy: leave it out")


def test_what_json_cannot_carry_is_left_out_and_said(engine: FakeEngine, cli: Cli) -> None:
    result = cli("submit", "-g", "bio", "--", "true", env={"LATIN": "na\udcefve"})
    assert result.stderr == "not exported, because their values are not UTF-8: LATIN\n"
    assert "LATIN" not in submitted(engine).env


def test_an_earlier_engine_reads_what_uses_none_of_the_later_fields() -> None:
    """An engine refuses fields that it lacks."""
    assert msgspec.json.decode(msgspec.json.encode(Submission(argv=("sim",), group="bio"))) == {
        "argv": ["sim"],
        "group": "bio",
    }
