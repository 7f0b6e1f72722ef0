"""What is laid into a machine: its services' scripts, and the account of what it boots from."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.machine import services
from tests.cluster.machine.machine import Bind, Machine, Specification
from tests.cluster.machine.services import Service


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One whose services `cook` and `waiter` are laid, and that is off."""
    machine = Machine(name="inn", state=tmp_path / "inn", group="absent/group", logs=tmp_path / "logs")
    services.prepare(
        machine.upper,
        machine.logs,
        [
            Service("cook", ["/bin/echo", "two words"], {"SPICE": "it's hot"}),
            Service("waiter", ["/bin/true"], starts_with_machine=False),
        ],
    )
    return machine


def _dies(machine: Machine, service: str, *said: str) -> None:
    """What the scripts of a service do when it ends."""
    machine.log(service).write_text("".join(f"{line}\n" for line in (*said, "ended with status 1")))
    (machine.logs / services.DEATHS / service).write_text("ended with status 1\n")


def test_script_runs_the_command_with_its_words_and_variables_as_they_are(machine: Machine) -> None:
    run = machine.upper / services.DIRECTORY / "cook" / "run"
    script = run.read_text().replace(services.LOGS, str(machine.logs))
    subprocess.run(["sh", "-c", script.replace("exec /bin/echo", 'echo "$SPICE"; exec /bin/echo')], check=True)

    assert os.access(run, os.X_OK)
    assert machine.log("cook").read_text() == "it's hot\ntwo words\n"


def test_end_of_a_service_is_written_where_the_host_sees_it(machine: Machine) -> None:
    finish = machine.upper / services.DIRECTORY / "cook" / "finish"
    script = finish.read_text().replace(services.LOGS, str(machine.logs))
    subprocess.run(["sh", "-c", script, "finish", "3"], check=True)

    assert services.has_died(machine.logs, "cook")
    assert not services.has_died(machine.logs, "waiter")
    assert machine.log("cook").read_text() == "ended with status 3\n"


def test_only_a_service_that_waits_for_others_is_down_at_first(machine: Machine) -> None:
    folder = machine.upper / services.DIRECTORY
    assert not (folder / "cook" / "down").exists()
    assert (folder / "waiter" / "down").exists()


def test_earlier_boots_deaths_and_supervisors_are_forgotten(machine: Machine) -> None:
    _dies(machine, "cook")
    supervised = machine.upper / services.DIRECTORY / "cook" / "supervise"
    supervised.mkdir()
    (supervised / "ok").touch()

    services.prepare(machine.upper, machine.logs, [Service("cook", ["/bin/true"])])

    assert not services.has_died(machine.logs, "cook")
    assert not services.have_started(machine.upper, [Service("cook", ["/bin/true"])])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (["all is well", "Error: unknown flag: --salt"], "Error: unknown flag: --salt"),
        (["I1121 start", 'E1121 run.go:72] "command failed" err="no salt"', "usage:"], 'E1121 run.go:72] "command'),
        (["panic: no salt", "", "goroutine 1 [running]:", "main.main()"], "panic: no salt"),
        (['time="x" level=fatal msg="no salt"', "bye"], 'time="x" level=fatal msg="no salt"'),
        (["containerd: no salt"], "containerd: no salt"),
        ([], "it said nothing"),
    ],
)
def test_death_is_told_with_the_line_that_tells_why(machine: Machine, said: list[str], told: str) -> None:
    _dies(machine, "cook", *said)

    with pytest.raises(ClusterError) as error:
        machine.check_alive(["waiter", "cook"])

    assert error.value.what.startswith(f"cook on inn has died: {told}")
    assert error.value.log == machine.log("cook")


async def test_death_ends_work_at_once(machine: Machine) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.to_thread(_dies, machine, "cook", "no salt")
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with asyncio.timeout(60):
        with pytest.raises(ClusterError, match=r"cook on inn has died: no salt"):
            await machine.while_alive(["cook"], work())
    assert ended.is_set()


async def test_death_before_the_work_counts_as_well(machine: Machine) -> None:
    _dies(machine, "cook")
    async with asyncio.timeout(60):
        with pytest.raises(ClusterError, match=r"cook on inn has died"):
            await machine.while_alive(["cook"], asyncio.sleep(3600))


async def test_work_beside_living_services_has_its_own_result_and_failure(machine: Machine) -> None:
    async def result() -> int:
        return 7

    async def failure() -> None:
        raise LookupError("of its own")

    assert await machine.while_alive(["cook"], result()) == 7
    with pytest.raises(LookupError, match=r"of its own"):
        await machine.while_alive(["cook"], failure())


def test_machine_boots_from_what_it_is_made_of(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.group, "create", lambda: None)
    machine._prepare(
        Specification(
            name="inn",
            namespace="street",
            group="absent/group",
            state=machine.state,
            lower=tmp_path / "debian",
            logs=machine.logs,
            binds=[Bind(tmp_path / "cellar", "/cellar", read_only=True)],
            files={"/etc/menu": "soup\n"},
            pretended={"/proc/cpuinfo": "many\n"},
            pretended_trees={"/sys/devices": {"cpu0/online": "1\n"}},
        )
    )

    assert (machine.upper / "etc/menu").read_text() == "soup\n"
    assert machine.pretended("/proc/cpuinfo") == "many\n"
    assert machine.pretended("/proc/meminfo") is None
    written = json.loads((machine.state / "boot.json").read_text())
    assert written["lower"] == str(tmp_path / "debian")
    assert written["mounts"] == [
        [str(tmp_path / "cellar"), "/cellar", True],
        [str(machine.logs), services.LOGS, False],
    ]


def test_machine_that_is_off_is_not_entered(machine: Machine) -> None:
    (machine.state / "init.pid").write_text(str(os.getpid()))  # some other process has its number by now

    assert machine.pid() is None
    with pytest.raises(ClusterError, match=r"^inn is off"):
        machine.entered("true")
