import os
import threading
from pathlib import Path

import pytest

from .conftest import Cli
from .fake_engine import FakeEngine, a_job


@pytest.fixture
def log(engine: FakeEngine, tmp_path: Path) -> Path:
    path = tmp_path / "stdout.log"
    engine.jobs = {"4f6c1d2e9a7b": a_job(stdout=str(path), stderr=str(tmp_path / "stderr.log"))}
    return path


def test_prints_the_bytes_as_they_are(cli: Cli, log: Path) -> None:
    log.write_bytes(b"step 1\r\xff\nstep 2\n")
    assert cli("logs", "md").stdout_bytes == b"step 1\r\xff\nstep 2\n"


def test_standard_error_is_another_file(cli: Cli, log: Path) -> None:
    log.with_name("stderr.log").write_text("warning\n")
    assert cli("logs", "md", "--stderr").stdout == "warning\n"


def test_a_job_that_has_not_started_has_written_nothing(engine: FakeEngine, cli: Cli, log: Path) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job(stdout=str(log), started_at=None, phase="Queued")}
    assert (cli("logs", "md").exit_code, cli("logs", "md").stdout) == (0, "")


def test_a_removed_file_is_named(cli: Cli, log: Path) -> None:
    result = cli("logs", "md")
    assert result.exit_code == 3
    assert str(log) in result.stderr


def test_fifo_as_the_output_is_not_waited_for(cli: Cli, log: Path) -> None:
    os.mkfifo(log)
    result = cli("logs", "md")
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"{log} is no regular file: it keeps no output" in result.stderr


def test_follow_copies_what_is_appended_and_ends_with_the_job(engine: FakeEngine, cli: Cli, log: Path) -> None:
    """The file appears, grows, and grows once more before the end is told: nothing is lost."""
    watching = threading.Event()
    engine.on_watch = watching.set

    def run() -> None:
        assert watching.wait(60)
        with log.open("a") as file:
            for step in range(500):
                file.write(f"step {step}\n")
                file.flush()
        engine.put(a_job(stdout=str(log), phase="Succeeded"))

    job = threading.Thread(target=run)
    job.start()
    result = cli("logs", "-f", "md")
    job.join()
    assert result.stdout.splitlines() == [f"step {step}" for step in range(500)]


def test_follow_of_an_ended_job_returns_at_once(engine: FakeEngine, cli: Cli, log: Path) -> None:
    log.write_text("done\n")
    engine.jobs = {"4f6c1d2e9a7b": a_job(stdout=str(log), phase="Succeeded")}
    assert cli("logs", "-f", "md").stdout == "done\n"


def test_json_wraps_the_text(cli: Cli, log: Path) -> None:
    log.write_text("a\n")
    assert cli("logs", "md", "-o", "json").stdout == '{"job":"4f6c1d2e9a7b","text":"a\\n"}\n'
