import json
import threading
from pathlib import Path

import msgspec
import pytest

from cedana_sched.local.views import Change, EventView, JobView, Problem

from .conftest import Cli
from .fake_engine import NOW, FakeEngine, a_job


def test_ps_lists_what_has_not_ended(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {job.uid: job for job in (a_job(), a_job(uid="9", name="old", phase="Succeeded"))}
    result = cli("ps")
    heading, row = result.stdout.splitlines()
    assert heading.split()[:5] == ["JOB", "NAME", "ID", "GROUP", "PHASE"]
    assert row.split()[:8] == ["4f6c1d2e", "md", "md-run", "bio", "Running", "0", "2", "2.00"]
    assert len(cli("ps", "--all").stdout.splitlines()) == 3


def test_ps_without_jobs_prints_no_data(engine: FakeEngine, cli: Cli) -> None:
    result = cli("ps")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "no jobs" in result.stderr


def test_json_of_a_job_keeps_raw_numbers_and_every_field(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    result = cli("--output", "json", "describe", "md")
    golden = (Path(__file__).parent / "golden_job.json").read_text()
    assert result.stdout == golden
    assert msgspec.json.decode(result.stdout, type=JobView) == a_job()


def test_output_after_the_command_wins(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    assert json.loads(cli("--output", "table", "ps", "-o", "json").stdout)[0]["name"] == "md"


def test_describe_tells_the_story_of_a_job(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    text = cli("describe", "md").stdout
    assert "default/md-run" in text
    assert "1 times, 1m15s of work saved" in text
    assert "400ms after the notice" in text
    assert "from default/md-run/0/main@1" in text


def test_a_job_shows_what_a_checkpoint_would_fail_for(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job(obstacle="process 7 (node) uses io_uring: switch it off", checkpoint=None)}
    assert "cannot be saved: process 7 (node) uses io_uring: switch it off" in " ".join(cli("ps").stdout.split())
    assert "Checkpointable:  no: process 7 (node) uses io_uring: switch it off" in cli("describe", "md").stdout


def test_an_unknown_job_ends_with_not_found(engine: FakeEngine, cli: Cli) -> None:
    for command in ("describe", "logs", "preempt", "checkpoint", "restore", "cancel", "wait"):
        result = cli(command, "a/b c?")
        assert (result.exit_code, result.stdout) == (3, ""), command
        assert "'a/b c?' does not exist" in result.stderr


def test_no_engine_is_unreachable(cli: Cli) -> None:
    for command in (("ps",), ("ps", "-w"), ("wait", "x"), ("engine", "status")):
        result = cli(*command)
        assert result.exit_code == 7, command
        assert "remedy: start one with 'cedana-sched engine run'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (("preempt", "md"), ("preempt", None)),
        (("checkpoint", "md"), ("checkpoint", {"leave_running": False})),
        (("checkpoint", "--leave-running", "md"), ("checkpoint", {"leave_running": True})),
        (("restore", "md"), ("restore", {"generation": None})),
        (("restore", "md", "--generation", "3"), ("restore", {"generation": 3})),
        (("cancel", "md"), ("cancel", None)),
    ],
)
def test_actions_ask_the_engine(
    engine: FakeEngine, cli: Cli, arguments: tuple[str, ...], request_: tuple[str, object]
) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    result = cli(*arguments)
    assert engine.requests == [request_]
    assert result.stdout == "md (4f6c1d2e) Running [default/md-run/0/main@1]\n"


def test_a_refused_action_shows_the_evidence(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    engine.problem = (409, Problem("the snapshot failed: a GPU is open", "close it", evidence=("Error (x.c:1): no",)))
    result = cli("checkpoint", "md")
    assert result.exit_code == 4
    assert result.stderr.splitlines()[-3:] == [
        "error: the snapshot failed: a GPU is open",
        "  | Error (x.c:1): no",
        "remedy: close it",
    ]


@pytest.mark.parametrize(
    ("kind", "code"), [("DumpError", 1), ("IncompatibleError", 6), ("StoreUnavailableError", 7), ("Unheard", 4)]
)
def test_an_error_of_the_engine_keeps_its_kind(engine: FakeEngine, cli: Cli, kind: str, code: int) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    engine.problem = (409, Problem("it did not work", kind=kind))
    assert cli("checkpoint", "md").exit_code == code


def test_a_checkpoint_tells_its_steps_where_there_is_no_terminal(engine: FakeEngine, cli: Cli) -> None:
    running = a_job(checkpoint=None)
    engine.jobs = {running.uid: running}
    watching = threading.Event()
    engine.on_watch = watching.set
    made = a_job().checkpoint
    assert made is not None

    def act(_: str, job: JobView) -> JobView:
        assert watching.wait(60)
        for step in ("Freezing", "Dumping", "Dumping"):
            engine.put(msgspec.structs.replace(job, checkpoint=msgspec.structs.replace(made, step=step)))
        engine.put(a_job())
        return a_job()

    engine.on_action = act
    result = cli("checkpoint", "md")
    told = [line for line in result.stderr.splitlines() if line.startswith("md: ")]
    assert [line.split()[1].rstrip(",") for line in told][:2] == ["Freezing", "Dumping"]
    assert result.stderr.count("Dumping") == 1


def test_preempt_wait_returns_when_the_place_is_free(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    engine.on_action = lambda _, job: msgspec.structs.replace(job, phase="Preempting")
    calls = iter(range(2))

    def free() -> None:
        if next(calls) == 1:  # the second watch is the one that waits; the first shows progress
            engine.put(a_job(phase="Queued", why="waits for bio's quota"))

    engine.on_watch = free
    assert cli("preempt", "--wait", "md").stdout.startswith("md (4f6c1d2e) Queued: waits for bio's quota")


def test_wait_ends_with_the_job(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    engine.on_watch = lambda: engine.put(a_job(phase="Succeeded", why="exit code 0", exit_code=0))
    result = cli("wait", "md")
    assert (result.exit_code, result.stdout) == (0, "md (4f6c1d2e) Succeeded: exit code 0\n")


def test_wait_for_a_phase(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job(phase="Queued")}
    engine.on_watch = lambda: engine.put(a_job(phase="Running"))
    assert cli("wait", "md", "--for", "running").exit_code == 0


def test_wait_for_a_phase_that_can_not_come_any_more_fails(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job(phase="Cancelled")}
    assert cli("wait", "md", "--for", "Running").exit_code == 1


def test_wait_times_out_and_says_that_the_job_goes_on(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    result = cli("wait", "md", "--timeout", "0.05")
    assert result.exit_code == 5
    assert "job md is Running after 50ms" in result.stderr
    assert "it continues" in result.stderr


def test_wait_says_when_the_engine_stops(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}
    engine.on_watch = engine.hang_up
    result = cli("wait", "md")
    assert result.exit_code == 7
    assert "the engine stopped while job md was waited for" in result.stderr


def test_watch_writes_one_line_for_each_change(engine: FakeEngine, cli: Cli) -> None:
    engine.jobs = {"4f6c1d2e9a7b": a_job()}

    def change() -> None:
        engine.say(EventView(NOW, "Preempted", "gives back what bio borrowed", warning=True, job="md"))
        engine.hang_up()

    engine.on_watch = change
    assert cli("ps", "-w").stdout.splitlines() == [
        "md (4f6c1d2e) Running",
        "! Preempted md: gives back what bio borrowed",
    ]
    lines = cli("ps", "-w", "-o", "json").stdout.splitlines()
    assert [msgspec.json.decode(line, type=Change).event is None for line in lines] == [True, False]


def test_engine_status_and_groups(engine: FakeEngine, cli: Cli) -> None:
    assert "CRIU:      4.2.1" in cli("engine", "status").stdout
    assert cli("engine", "groups").stdout.splitlines()[1].split()[0] == "bio"
    assert json.loads(cli("engine", "groups", "-o", "json").stdout)[0]["borrowed_cpus"] == 1.0
