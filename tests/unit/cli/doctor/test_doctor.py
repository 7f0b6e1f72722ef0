import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cedana_sched.adapter import registry
from cedana_sched.cli.doctor import command, criu, gpus_and_disk, machine
from cedana_sched.cli.doctor.check_runner import Finding, Level, run_check
from cedana_sched.cli.doctor.cluster.examine import OF_CLUSTER, OF_INSTALLATION
from cedana_sched.cli.exit_codes import ExitCode
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiUnavailableError, RefusedByServerError
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.gpus import Gpu, Gpus, MigDevice
from cedana_sched.snapshot.criu_toolchain import Origin, Toolchain
from tests.unit.cli.conftest import Cli
from tests.unit.cli.doctor.cluster.cluster_to_look_at import Cluster
from tests.unit.cli.fake_engine import AN_ENGINE, FakeEngine

ALL = (1 << 41) - 1


def status_without(*names: str) -> str:
    held = ALL
    for capability in machine.CAPABILITIES:
        if capability.name in names:
            held &= ~(1 << capability.bit)
    return f"Name:\tx\nCapEff:\t{held:016x}\n"


def test_a_full_root_has_nothing_to_mend() -> None:
    (finding,) = machine.capabilities(status_without())
    assert finding.level is Level.OK


def test_missing_capabilities_say_what_does_not_work() -> None:
    resource, admin = "CAP_SYS_RESOURCE", "CAP_SYS_ADMIN"
    found = {finding.message.split()[0]: finding for finding in machine.capabilities(status_without(resource, admin))}
    assert found[resource].level is Level.WARN
    assert "limits of other users" in found[resource].message
    assert found[admin].level is Level.FAIL
    assert all(finding.remedy for finding in found.values())


def test_what_others_have_written_moves_no_terminal() -> None:
    found = [Finding("armada", Level.WARN, "says: \x1b[2J", "mend \x9b1m\nit")]
    assert [row[2] for row in command._findings_table(found).rows] == ["says: \ufffd[2J", "-> mend \ufffd1m\ufffdit"]


@pytest.mark.parametrize(("release", "level"), [("4.19.0-27", Level.FAIL), ("5.9.0", Level.OK), ("6.18.44", Level.OK)])
def test_old_kernels_are_refused(monkeypatch: pytest.MonkeyPatch, release: str, level: Level) -> None:
    monkeypatch.setattr("platform.release", lambda: release)
    (finding,) = machine.kernel()
    assert finding.level is level
    assert release in finding.message


@pytest.mark.parametrize(
    ("origin", "level", "named"),
    [
        (Origin.PINNED, Level.OK, "pins"),
        (Origin.MACHINE, Level.OK, "/cache/criu-1/bin/criu"),
        (Origin.OLDER, Level.WARN, "doctor --prepare"),
        (Origin.SERVED, Level.WARN, "delete /cache/criu-1 "),
    ],
)
def test_it_says_which_packages_criu_is_made_from(origin: Origin, level: Level, named: str) -> None:
    folder = Path("/cache/criu-1")
    programs = (folder / "bin/criu", folder / "bin/tini", folder / "bin/nft", folder / "python")
    finding = criu.check_package_origin(Toolchain("4.2.1", *programs, origin=origin))
    assert finding.level is level
    assert named in f"{finding.message} {finding.remedy}"
    assert bool(finding.remedy) == (level is Level.WARN)


_MIG = MigDevice("A100 MIG 1g.5gb", "MIG-1", 5 << 30)
_RUNS_ON = "a job that uses it cannot be frozen by this version, and keeps running"
_A100 = Gpu("NVIDIA A100", "GPU-1", 40 << 30, mig_devices=(_MIG,))


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (Gpus(), ["ok none"]),
        (Gpus(driver="580.1", cuda="13.0"), ["ok none; an NVIDIA driver is loaded (driver 580.1, CUDA 13.0)"]),
        (
            Gpus((_A100, Gpu()), driver="580.1", cuda="13.0"),
            [
                f"warn an NVIDIA GPU is here (driver 580.1, CUDA 13.0); {_RUNS_ON}",
                "ok NVIDIA A100 (40.0 GiB, GPU-1); MIG device A100 MIG 1g.5gb (5.00 GiB, MIG-1)",
                "ok of unknown name (memory unknown, UUID unknown)",
            ],
        ),
        (
            Gpus(problem="this user may not use the driver"),
            ["warn the GPUs of the NVIDIA driver cannot be named: this user may not use the driver"],
        ),
    ],
)
def test_gpus_are_named(found: Gpus, says: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def find() -> Gpus:
        return found

    monkeypatch.setattr(gpus_and_disk, "find_gpus", find)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    findings = list(gpus_and_disk.gpus())
    assert [f"{finding.level} {finding.message}" for finding in findings] == says
    assert [bool(finding.remedy) for finding in findings] == [finding.level is Level.WARN for finding in findings]


def test_a_driver_that_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find() -> Gpus:
        return Gpus()

    monkeypatch.setattr(gpus_and_disk, "find_gpus", find)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (finding,) = gpus_and_disk.gpus()
    assert (finding.level, "the driver is not loaded" in finding.message) == (Level.WARN, True)


def test_the_disk_of_a_directory_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    (finding,) = gpus_and_disk.disk(tmp_path / "a" / "b")
    assert f"free at {tmp_path};" in finding.message


def test_too_little_room_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus_and_disk, "SCARCE_BYTES", 1 << 62)
    (finding,) = gpus_and_disk.disk(tmp_path)
    assert finding.level is Level.FAIL


def test_an_error_is_a_finding_with_its_remedy() -> None:
    def broken() -> list[Finding]:
        raise CedanaSchedError("no hierarchy is mounted", remedy="mount one")

    assert run_check("cgroups", broken) == [Finding("cgroups", Level.FAIL, "no hierarchy is mounted", "mount one")]


def test_the_exit_code_is_that_of_the_worst_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding("kernel", Level.OK, "fine"), Finding("criu", Level.WARN, "not yet", "prepare")]
    monkeypatch.setattr(command, "examine", lambda *_, **__: found)
    result = cli("doctor")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-2:] == ["warn   criu    not yet", "               -> prepare"]
    found.append(Finding("namespaces", Level.FAIL, "denied", "be root"))
    result = cli("doctor", "-o", "json")
    assert result.exit_code == 1
    assert [finding["level"] for finding in json.loads(result.stdout)] == ["ok", "warn", "fail"]
    assert json.loads(result.stderr)["kind"] == "DoctorError"


def test_the_store_is_tried(cli: Cli, tmp_path: Path) -> None:
    def state(*arguments: str) -> tuple[str, str]:
        found = json.loads(cli("doctor", "-o", "json", *arguments).stdout)
        return next((one["level"], one["says"]) for one in found if one["check"] == "store")

    assert state() == ("ok", f"none yet: the engine makes a folder below {tmp_path}")
    level, says = state("--store", str(tmp_path / "s"))
    assert (level, "commits by conditional create" in says) == ("ok", True)
    (tmp_path / "file").touch()
    assert state("--store", str(tmp_path / "file" / "s"))[0] == "fail"


def test_a_running_engine_is_named(engine: FakeEngine, cli: Cli, tmp_path: Path) -> None:
    engine.view = msgspec.structs.replace(AN_ENGINE, store=str(tmp_path / "s"))
    found = {finding["check"]: finding["says"] for finding in json.loads(cli("doctor", "-o", "json").stdout)}
    assert found["engine"].startswith("version 0.1.0 runs as process 4711")
    assert {"kernel", "capabilities", "namespaces", "cgroups", "criu", "gpu", "disk"} <= set(found)


class _Diagnosing:
    """As much of an adapter as the doctor asks."""

    def __init__(self, answer: Finding | CedanaSchedError) -> None:
        async def diagnose(_: object) -> list[Finding]:
            if isinstance(answer, CedanaSchedError):
                raise answer
            return [answer]

        self.adapter = type("Adapter", (), {"diagnose": staticmethod(diagnose)})


@pytest.fixture
def adapters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Adapters that are installed; the cluster has nothing but the product."""

    @asynccontextmanager
    async def opened(_: str | None) -> AsyncIterator[Cluster]:
        yield Cluster()

    there: dict[str, Any] = {"kueue": type("Adapter", (), {})}
    monkeypatch.setattr(registry, "installed_adapters", lambda: there)
    monkeypatch.setattr(registry, "load", lambda name: there[name])
    monkeypatch.setattr(Api, "open", opened)
    return there


def test_adapters_say_what_they_find_in_a_cluster(cli: Cli, adapters: dict[str, Any]) -> None:
    adapters["volcano"] = _Diagnosing(Finding("volcano holds", Level.FAIL, "none", "install")).adapter
    adapters["armada"] = _Diagnosing(CedanaSchedError("you may not look", remedy="ask")).adapter
    result = cli("doctor", "--cluster", "--kubeconfig", "/dev/null", "-o", "json")
    levels = {one["check"]: one["level"] for one in json.loads(result.stdout)}
    assert (levels["installation"], levels["armada"], levels["volcano holds"]) == ("ok", "warn", "fail")
    assert "the cluster cannot run" in json.loads(result.stderr)["message"]
    assert result.exit_code == 1


def test_a_cluster_that_does_not_answer_is_no_finding(cli: Cli, adapters: dict[str, Any]) -> None:
    adapters["volcano"] = _Diagnosing(ApiUnavailableError("nobody there")).adapter
    assert cli("doctor", "--cluster").exit_code == ExitCode.UNREACHABLE


def test_whoever_may_read_nothing_is_told_which_rights_are_missing(cli: Cli, adapters: dict[str, Any]) -> None:
    def refused(*_: object) -> None:
        raise RefusedByServerError("forbidden", status=403)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "_readable", refused)
        result = cli("doctor", "--cluster", "-o", "json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert {one["level"] for one in found} == {"warn"}
    assert all(one["says"].startswith("unknown: needs ") and one["remedy"] for one in found)


def test_each_missing_right_leaves_the_other_checks(cli: Cli, adapters: dict[str, Any]) -> None:
    found = {one["check"] for one in json.loads(cli("doctor", "--cluster", "-o", "json").stdout)}
    assert found >= {check for check, _ in (*OF_INSTALLATION, *OF_CLUSTER)}


def test_an_api_server_that_does_not_answer_is_no_finding_of_a_check(
    cli: Cli, adapters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise ApiUnavailableError("nobody there")

    monkeypatch.setattr(Cluster, "_readable", silent)
    assert cli("doctor", "--cluster").exit_code == ExitCode.UNREACHABLE


@pytest.mark.parametrize("option", ["--kubeconfig", "--namespace"])
def test_what_is_for_clusters_asks_for_one(cli: Cli, option: str) -> None:
    result = cli("doctor", option, "/dev/null")
    assert result.exit_code == ExitCode.USAGE
    assert "write --cluster as well" in result.stderr
