"""The command line as a person uses it: the installed script, the real engine, real jobs, real snapshots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tenacity

SCRIPT = Path(sys.executable).with_name("cedana-sched")
PATIENCE_SECONDS = 60

pytestmark = pytest.mark.criu

GROUPS = """
[[groups]]
name = "bio"
nominalQuota = {cpu = 1, memory = "512Mi"}
preemption = {reclaimWithinCohort = "Any", withinClusterQueue = "LowerPriority"}

[[groups]]
name = "ml"
nominalQuota = {cpu = 1, memory = "512Mi"}
preemption = {reclaimWithinCohort = "Any", withinClusterQueue = "LowerPriority"}
"""

COUNTER = """
import os, sys, time
step = 0
while not os.path.exists(sys.argv[1]):
    print(step, flush=True)
    step += 1
    time.sleep(0.02)
print("told to stop", flush=True)
"""
"""Counts until a file appears, so that no test depends on how fast this machine is today."""


class Machine:
    """One state directory, its engine, and a shell in front of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.configuration = directory / "groups.toml"
        self.configuration.write_text(GROUPS)
        self.log = directory / "engine.log"
        self._engine: subprocess.Popen[bytes] | None = None
        self._stop_files: dict[str, Path] = {}

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("CEDANA_")},
            "CEDANA_SCHED_STATE_DIR": str(self.directory / "state"),
            "CEDANA_SCHED_STORE": str(self.directory / "store"),
        }

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._engine = subprocess.Popen(
                [SCRIPT, "engine", "run", "--config", self.configuration],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_it_answers()

    @tenacity.retry(wait=tenacity.wait_fixed(0.05), stop=tenacity.stop_after_delay(PATIENCE_SECONDS), reraise=True)
    def _wait_until_it_answers(self) -> None:
        assert self("engine", "status").returncode == 0, self.log.read_text()[-2000:]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self._engine is not None
        self._engine.send_signal(how)
        return self._engine.wait(PATIENCE_SECONDS)

    def __call__(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *arguments],
            env=self.environment | (env or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def say(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Run a command that must succeed."""
        done = self(*arguments, env=env)
        assert done.returncode == 0, f"{arguments}: {done.stderr}\n{self.log.read_text()[-2000:]}"
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.say(*arguments, "--output", "json"))

    def submit_counter(self, *options: str) -> str:
        """Submit a counter, and return its uid once it counts."""
        stop_file = self.directory / f"stop-{len(self._stop_files)}"
        command = ("--", sys.executable, "-u", "-c", COUNTER, str(stop_file))
        uid = self.say("submit", "--group", "bio", "--memory", "128Mi", *options, *command).strip()
        self._stop_files[uid] = stop_file
        self.say("wait", uid, "--for", "Running", "--timeout", "50s")
        return uid

    def let_it_end(self, uid: str) -> None:
        """Stop the counter, and see that its log has every number once, in order."""
        self._stop_files[uid].touch()
        *numbers, last = self.say("logs", "-f", uid).splitlines()
        assert last == "told to stop"
        assert numbers == [str(step) for step in range(len(numbers))]

    def cancel_everything(self) -> None:
        for job in self.json("ps"):
            self.say("cancel", job["uid"])
            self("wait", job["uid"], "--timeout", "30s")


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("engine"))
    made.start()
    yield made
    assert made.stop() == 0


@pytest.fixture
def machine(started: Machine) -> Iterator[Machine]:
    """The engine without jobs, before and after."""
    yield started
    started.cancel_everything()


def test_a_job_survives_a_preemption_and_its_log_has_every_line_once(machine: Machine) -> None:
    uid = machine.submit_counter("--id", "count", "--name", "counter")
    machine.say("checkpoint", "counter", "--leave-running")
    machine.say("preempt", "counter", "--wait", "--timeout", "50s")
    machine.say("wait", "counter", "--for", "Running", "--timeout", "50s")
    machine.let_it_end(uid)

    job = machine.json("describe", uid)
    assert (job["phase"], job["exit_code"], job["preemptions"]) == ("Succeeded", 0, 1)
    assert job["runs"][-1]["restored_from"]

    snapshots = [view["snapshot"] for view in machine.json("snapshots", "list", "count")]
    assert len(snapshots) >= 2
    contents = machine.json("snapshots", "inspect", snapshots[-1])["contents"]
    assert any("python" in process["command"] for process in contents["processes"])
    assert machine.say("snapshots", "verify", "--all").endswith("snapshots are whole\n")


def test_a_checkpoint_suspends_until_restore(machine: Machine) -> None:
    uid = machine.submit_counter("--id", "held")
    assert machine.json("checkpoint", uid)["phase"] == "Suspended"
    refused = machine("checkpoint", uid)
    assert refused.returncode == 4, refused.stderr
    machine.say("restore", uid)
    machine.say("wait", uid, "--for", "Running", "--timeout", "50s")
    machine.let_it_end(uid)


def test_the_engine_may_be_killed_and_started_again(machine: Machine) -> None:
    uid = machine.submit_counter("--id", "lasting")
    machine.stop(signal.SIGKILL)
    unreachable = machine("ps")
    assert unreachable.returncode == 7
    machine.start()
    assert machine.json("describe", uid)["phase"] == "Running"
    machine.let_it_end(uid)


def test_a_job_submitted_from_an_activated_venv_runs_its_python(machine: Machine, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    activated = {"VIRTUAL_ENV": str(tmp_path / "venv"), "PATH": f"{tmp_path}/venv/bin:{os.environ['PATH']}"}
    program = ("--", "python3", "-c", "import sys, os; print(sys.prefix, 'CEDANA_SCHED_STORE' in os.environ)")
    prefixes = {}
    for export in ("ALL", "NONE"):
        uid = machine.say(
            "submit", "--group", "bio", "--memory", "64Mi", "--export", export, *program, env=activated
        ).strip()
        machine.say("wait", uid, "--timeout", "50s")
        prefixes[export] = machine.say("logs", uid)

    assert prefixes["ALL"] == f"{tmp_path}/venv False\n"
    assert str(tmp_path) not in prefixes["NONE"]


def test_what_cannot_be_done_is_said_with_its_code(machine: Machine) -> None:
    unknown = machine("submit", "--group", "physics", "--", "true")
    assert (unknown.returncode, "physics" in unknown.stderr, "bio" in unknown.stderr) == (2, True, True)
    too_much = machine("submit", "--group", "bio", "--cpus", "64", "--", "true")
    assert too_much.returncode == 2
    assert machine("describe", "nobody").returncode == 3
    failing = machine("submit", "--group", "bio", "--wait", "--", "sh", "-c", "exit 3")
    assert failing.returncode == 1
    assert "ended as Failed: exit code 3" in failing.stderr


def test_a_second_engine_is_refused(machine: Machine) -> None:
    second = machine("engine", "run", "--config", str(machine.configuration))
    assert second.returncode in {1, 4}
    assert "remedy: " in second.stderr


def test_a_wrong_configuration_names_field_value_and_remedy(tmp_path: Path) -> None:
    configuration = tmp_path / "groups.toml"
    configuration.write_text('[[groups]]\nname = "bio"\nnominalQuota = {cpu = "many", memory = "1Gi"}\n')
    done = subprocess.run(
        [SCRIPT, "--state-dir", tmp_path / "state", "engine", "run", "--config", configuration],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2, done.stderr
    assert "many" in done.stderr
    assert "remedy: " in done.stderr
