"""The command line as a person uses it: the installed script, the real engine, real jobs, real snapshots."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
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


class Terminal:
    """A user's terminal, with one command of ours on it."""

    def __init__(self, machine: Machine, *arguments: str) -> None:
        self.master, slave = os.openpty()
        self.settings = termios.tcgetattr(slave)
        self.resize(30, 100)
        self.process = subprocess.Popen(
            [SCRIPT, *arguments], env=machine.environment, stdin=slave, stdout=slave, stderr=slave
        )
        self._slave = slave
        self._unseen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, pattern: str) -> str:
        """Return what was shown since the last call, up to a match."""
        while (found := re.search(pattern.encode(), self._unseen)) is None:
            assert select.select([self.master], [], [], PATIENCE_SECONDS)[0], f"no {pattern!r} in {self._unseen!r}"
            self._unseen += os.read(self.master, 4096)
        shown, self._unseen = self._unseen[: found.end()], self._unseen[found.end() :]
        return shown.decode()

    def close(self) -> int:
        """Wait for the command's end, and see that the terminal is as it was before."""
        code = self.process.wait(PATIENCE_SECONDS)
        assert termios.tcgetattr(self._slave) == self.settings
        os.close(self.master)
        os.close(self._slave)
        return code


def test_a_terminal_continues_over_a_preemption_while_someone_is_attached(machine: Machine) -> None:
    shell = ("--", "bash", "--norc", "--noprofile", "--noediting", "-i")
    uid = machine.say(
        "submit",
        "--group",
        "bio",
        "--memory",
        "64Mi",
        "--id",
        "shell",
        "--name",
        "shell",
        "--tty",
        "-e",
        "PS1=> ",
        *shell,
    ).strip()
    first = Terminal(machine, "attach", "shell")
    assert first.until("> $") == "> "
    first.type("kept=41; stty -echo\r")
    first.until("\r\n> ")
    refused = machine("attach", "shell")
    assert (refused.returncode, "is attached to another terminal" in refused.stderr) == (4, True)

    machine.say("preempt", "shell")
    first.type("echo $((kept + 1)) $(stty size)\r")  # wherever the job is now
    assert first.until("> $") == "42 30 100\r\n> "
    assert machine.json("describe", uid)["runs"][-1]["restored_from"]
    first.resize(40, 120)
    first.process.send_signal(signal.SIGWINCH)  # as the kernel does for a controlling terminal
    first.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.05; done; echo resized\r")
    assert first.until("> $") == "resized\r\n> "
    first.type("\x10\x11")
    assert "detached; shell continues" in first.until("attach shell")
    assert first.close() == 0

    second = Terminal(machine, "attach", "shell")
    second.type("exit 3\r")
    shown = second.until("remedy: .*\n")
    assert "exit\r\n" in shown
    assert "> " not in shown  # nothing that was shown before
    assert "job shell ended as Failed: exit code 3" in shown
    assert second.close() == 1
    assert machine("attach", "shell").returncode == 4


def test_an_ended_attach_leaves_the_terminal_as_it_was(machine: Machine) -> None:
    uid = machine.say("submit", "--group", "bio", "--memory", "64Mi", "--tty", "--", "cat").strip()
    terminal = Terminal(machine, "attach", uid)
    terminal.type("words\r")
    terminal.until("words\r\nwords\r\n")
    terminal.process.send_signal(signal.SIGTERM)
    terminal.until("detached")
    assert terminal.close() == 0
    assert machine.json("describe", uid)["phase"] == "Running"


def test_a_job_without_a_terminal_is_not_attached_to(machine: Machine) -> None:
    uid = machine.submit_counter()
    refused = machine("attach", uid)
    assert (refused.returncode, "has no terminal" in refused.stderr) == (4, True)
    machine.let_it_end(uid)


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
