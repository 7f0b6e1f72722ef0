"""The installed command, as a shell starts it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cedana_sched import __version__

from .fake_engine import FakeEngine, a_job

SCRIPT = Path(sys.executable).with_name("cedana-sched")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False, timeout=30
    )


def test_version() -> None:
    assert run("--version").stdout == f"cedana-sched {__version__}\n"


@pytest.mark.parametrize(
    ("module", "program"),
    [("cedana_sched.cli.main", "cedana-sched"), ("cedana_sched.cli.kubectl.main", "kubectl cedana")],
)
def test_without_a_command_there_is_help_alone(module: str, program: str) -> None:
    code = f"from {module} import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert f"Usage: {program} [OPTIONS] COMMAND" in done.stdout


@pytest.mark.parametrize("program", ["cedana_sched.cli.main", "cedana_sched.cli.kubectl.main"])
def test_help_imports_nothing_heavy(program: str) -> None:
    """Help and completion must answer at once: aiohttp, obstore and pydantic wait for a command that needs them."""
    heavy = {"aiohttp", "kubernetes_asyncio", "obstore", "pydantic", "rich"}
    code = f"import sys, {program}; print(*sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("ps", "--nonsense"), "No such option: --nonsense"),
        (("describe",), "Missing argument 'JOB'"),
        (("engine", "run", "--config", "/none"), "Invalid value for '--config': file '/none' does not exist"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_a_usage_error(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "remedy: see 'cedana-sched" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message", "remedy"),
    [
        (
            ("ps", "-o", "xml"),
            "--output: 'xml' cannot be used",
            "'xml' is not one of 'table', 'wide', 'json', 'yaml'; see ",
        ),
        (
            ("submit", "--group", "bio", "--replicas", "two", "--", "true"),
            "--replicas: 'two' cannot be used",
            "input should be a valid integer, unable to parse string as an integer; see ",
        ),
        (
            ("restore", "md", "--generation", "0"),
            "--generation: '0' cannot be used",
            "input should be greater than or equal to 1; see ",
        ),
    ],
)
def test_bad_value_of_an_option_is_refused_with_option_value_and_remedy(
    arguments: tuple[str, ...], message: str, remedy: str
) -> None:
    done = run(*arguments)
    said, way_out = done.stderr.splitlines()
    assert (done.returncode, said) == (2, f"error: {message}")
    assert way_out.startswith(f"remedy: {remedy}'cedana-sched {arguments[0]}")


def test_a_command_line_that_cannot_be_read_is_a_problem_in_json() -> None:
    done = run("ps", "--nonsense", "-o", "json")
    assert done.returncode == 2
    assert json.loads(done.stderr)["message"] == "No such option: --nonsense"


def test_a_reader_that_had_enough_is_no_error(engine: FakeEngine, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x\n" * 500_000)
    engine.jobs = {"4f6c1d2e9a7b": a_job(stdout=str(log))}
    pipeline = f"{SCRIPT} logs md | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", pipeline],
        env=os.environ | {"CEDANA_SCHED_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("x\n0\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell: str) -> None:
    done = run("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")  # no shell need call us
    assert "_CEDANA_SCHED_COMPLETE" in done.stdout


def completions(directory: Path, words: str) -> list[str]:
    done = run(
        _CEDANA_SCHED_COMPLETE="complete_bash",
        COMP_WORDS=f"cedana-sched {words}",
        COMP_CWORD=str(len(words.split(" "))),
        CEDANA_SCHED_STATE_DIR=str(directory),
    )
    return done.stdout.split()


def test_job_names_are_completed(engine: FakeEngine, tmp_path: Path) -> None:
    engine.jobs = {name: a_job(uid=name, name=name) for name in ("md-1", "md-2", "train")}
    assert completions(tmp_path, "describe md") == ["md-1", "md-2"]
    assert completions(tmp_path, f"--state-dir {tmp_path} logs t") == ["train"]


def test_completion_without_an_engine_is_silent(tmp_path: Path) -> None:
    assert completions(tmp_path, "describe m") == []
