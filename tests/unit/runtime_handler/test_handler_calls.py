"""What the handler makes of runc's command line and of a bundle, without any runc."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.runtime_handler import handler, planned_create, runc_restore
from cedana_sched.runtime_handler.finished_container import build_success_program, replace_process
from cedana_sched.runtime_handler.handler_exit_codes import FAILED, PASS
from cedana_sched.runtime_handler.plan import (
    COLD,
    FAIL,
    FORGO,
    RESTORE,
    ContainerPlan,
    ContainerResult,
    Plan,
    plan_path,
    read_create_record,
    read_plan,
    read_result,
    write_create_record,
    write_plan,
    write_result,
)
from cedana_sched.runtime_handler.privilege_comparison import Confinement, Credentials, Privileges
from cedana_sched.runtime_handler.shim_command_line import CreateCall

GLOBAL = ["--root", "/run/containerd/runc/k8s.io", "--log", "LOG", "--log-format", "json", "--systemd-cgroup"]
ORDINARY = Privileges(Confinement(user=1000), Credentials(users=frozenset({1000})))
MAIN = ContainerPlan(images="/images/main", work="/logs/main", privileges=Privileges(Confinement(), Credentials()))


def _bundle(folder: Path, name: str = "main", kind: str = "container", uid: str = "u-1") -> Path:
    notes = {"container-type": kind, "container-name": name, "sandbox-uid": uid}
    annotations = {f"io.kubernetes.cri.{key}": value for key, value in notes.items()}
    specification = {"process": {"args": ["sleep"]}, "mounts": [], "annotations": annotations}
    (folder / "config.json").write_text(json.dumps(specification, separators=(",", ":")))
    return folder


def _create(bundle: Path, folder: Path) -> list[str]:
    words = [str(folder / "runc.log") if word == "LOG" else word for word in GLOBAL]
    return [*words, "create", "--bundle", str(bundle), "--pid-file", f"{bundle}/init.pid", "c1"]


def test_a_call_to_create_is_understood() -> None:
    call = CreateCall([*GLOBAL, "create", "--bundle", "/b", "--no-new-keyring", "--console-socket", "/s",
                       "--no-pivot", "--pid-file=/p", "c1"])  # fmt: skip
    assert (call.id, call.bundle, call.root, call.log) == ("c1", "/b", "/run/containerd/runc/k8s.io", "LOG")
    assert call.options == ["--bundle", "/b", "--console-socket", "/s", "--no-pivot", "--pid-file=/p"]
    assert call.global_options == GLOBAL


@pytest.mark.parametrize(
    "arguments",
    [[], ["create"], ["start", "c1"], [*GLOBAL, "delete", "--force", "create"], ["create", "--pid-file", "/p", "c1"]],
)
def test_other_calls_are_not_ours(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match=r"not a call|no bundle"):
        CreateCall(arguments)


@pytest.mark.parametrize(
    ("text", "uid"),
    [
        ('{"annotations":{"io.kubernetes.cri.sandbox-uid":"a-1"}}', "a-1"),
        ('{"annotations": {"io.kubernetes.cri.sandbox-uid": "a-1"}}', "a-1"),
        ('{"env":["X=\\"io.kubernetes.cri.sandbox-uid\\":\\"b\\""]}', None),
        ('{"annotations":{"io.kubernetes.cri.sandbox-uid":"../../etc"}}', None),
        ('{"annotations":{"io.kubernetes.cri.sandbox-uid":""}}', None),
        ("{}", None),
    ],
)
def test_the_pod_of_a_bundle_is_found_without_parsing(tmp_path: Path, text: str, uid: str | None) -> None:
    (tmp_path / "config.json").write_text(text)
    assert handler.find_pod_uid(str(tmp_path / "config.json")) == uid


def test_a_container_without_a_plan_passes_without_importing_anything(tmp_path: Path) -> None:
    bundle = _bundle(tmp_path)
    ask = (
        "import os, sys; sys.path.insert(0, sys.argv.pop(1)); before = set(sys.modules)\n"
        "from cedana_sched.runtime_handler.handler import apply_pod_plan\n"
        "status = apply_pod_plan(sys.argv[2:], '/runc', sys.argv[1], '')\n"
        "print(status, *sorted(set(sys.modules) - before))"
    )
    root = str(Path(handler.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", ask, root, str(tmp_path / "state"), *_create(bundle, tmp_path)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [
        "100", "__future__", "cedana_sched", "cedana_sched.runtime_handler", "cedana_sched.runtime_handler.handler",
        "cedana_sched.runtime_handler.handler_exit_codes",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "name", "kind", "status"),
    [
        (Plan(COLD), "main", "container", PASS),
        (Plan(FAIL, "no room"), "another", "container", PASS),
        (Plan(FAIL, "no room", containers={"main": MAIN}), "main", "container", FAILED),
        (Plan(RESTORE, containers={"main": MAIN}), "another", "container", PASS),
        (Plan(RESTORE, containers={"main": MAIN}), "main", "sandbox", PASS),
        (Plan(RESTORE, containers={}, skip=("prepare",)), "prepare", "container", PASS),
    ],
)
def test_what_is_not_to_continue_is_runcs(tmp_path: Path, plan: Plan, name: str, kind: str, status: int) -> None:
    bundle = _bundle(tmp_path, name, kind)
    write_plan(str(tmp_path / "pods/u-1"), plan)
    assert handler.apply_pod_plan(_create(bundle, tmp_path), "/nonexistent", str(tmp_path), "/finished") == status
    args = json.loads((bundle / "config.json").read_text())["process"]["args"]
    assert args == (["/.cedana-finished"] if name in plan.skip else ["sleep"])
    assert (tmp_path / "runc.log").exists() == (status == FAILED)


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", '{"version": 2, "decision": "restore"}', '{"version": 1}', '{"version": 1, "decision": "x"}',
        '{"version": 1, "decision": "restore", "containers": {"main": {}}}',
    ],
)  # fmt: skip
def test_a_plan_that_is_not_understood_is_none(tmp_path: Path, content: str) -> None:
    bundle = _bundle(tmp_path)
    folder = tmp_path / "pods/u-1"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(content)
    assert read_plan(str(folder)) is None
    assert handler.apply_pod_plan(_create(bundle, tmp_path), "/nonexistent", str(tmp_path), "") == PASS


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (ContainerResult(restored=True), PASS),
        (ContainerResult(restored=False, cold=True, why="no"), PASS),
        (ContainerResult(restored=False, why="no"), FAILED),
    ],
)
def test_a_container_has_one_turn(tmp_path: Path, result: ContainerResult, status: int) -> None:
    bundle, folder = _bundle(tmp_path), str(tmp_path / "pods/u-1")
    write_plan(folder, Plan(RESTORE, containers={"main": MAIN}))
    write_result(folder, "main", result)
    assert planned_create.create(_create(bundle, tmp_path), "/nonexistent", folder, "") == status


@pytest.mark.parametrize("fallback", [COLD, FAIL])
def test_whatever_goes_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallback: str) -> None:
    bundle, folder = _bundle(tmp_path), str(tmp_path / "pods/u-1")
    monkeypatch.setattr(planned_create, "die_with_parent", lambda parent: None)
    blocked = tmp_path / "file"
    blocked.touch()
    broken = MAIN._replace(work=str(blocked / "below"))
    write_plan(folder, Plan(RESTORE, fallback=fallback, containers={"main": broken}))
    status = planned_create.create(_create(bundle, tmp_path), "/bin/false", folder, "")
    assert status == (PASS if fallback == COLD else FAILED)
    result = read_result(folder, "main")
    assert result is not None
    assert "NotADirectoryError" in result.why
    assert result.cold == (fallback == COLD)
    if fallback == FAIL:
        assert json.loads((tmp_path / "runc.log").read_text())["level"] == "error"


@pytest.mark.parametrize("fallback", [COLD, FAIL])
@pytest.mark.parametrize("privileges", [None, Privileges(Confinement(), Credentials())])
def test_a_container_that_would_be_stronger_than_its_pod_allows_is_refused_before_criu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallback: str, privileges: Privileges | None
) -> None:
    bundle, folder = _bundle(tmp_path), str(tmp_path / "pods/u-1")
    spec = json.loads((bundle / "config.json").read_text())
    spec["process"] |= {"user": {"uid": 1000}, "noNewPrivileges": True}
    (bundle / "config.json").write_text(json.dumps(spec))
    monkeypatch.setattr(planned_create, "die_with_parent", lambda parent: None)
    monkeypatch.setattr(planned_create, "restore_with_runc", None)
    write_plan(folder, Plan(RESTORE, fallback=fallback, containers={"main": MAIN._replace(privileges=privileges)}))
    status = planned_create.create(_create(bundle, tmp_path), "/bin/false", folder, "")
    assert status == (PASS if fallback == COLD else FAILED)
    result = read_result(folder, "main")
    assert result is not None
    assert (result.restored, result.cold, read_create_record(folder, "main")) == (False, fallback == COLD, None)
    assert ("user: 0 in the snapshot, 1000 in the new container" in result.why) == (privileges is not None)
    assert (tmp_path / "runc.log").exists() == (fallback == FAIL)


@pytest.mark.parametrize("decision", [FORGO, FAIL])
def test_what_is_continued_while_its_pod_is_decided_against_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: str
) -> None:
    plan = Plan(RESTORE, fallback=COLD, containers={"main": MAIN})
    removed: list[str] = []

    def continue_container(*_: object, **__: object) -> ContainerResult:
        write_plan(str(tmp_path), plan._replace(decision=decision, why="its pod has been deleted"))
        return ContainerResult(restored=True)

    monkeypatch.setattr(planned_create, "restore_with_runc", continue_container)
    monkeypatch.setattr(planned_create, "remove_container", lambda *given: removed.append(given[2]))
    write_plan(str(tmp_path), plan)
    assert planned_create.create(_create(_bundle(tmp_path), tmp_path), "runc", str(tmp_path), "") == FAILED
    assert removed == ["c1"]
    assert "its pod has been deleted" in (tmp_path / "runc.log").read_text()
    assert read_result(str(tmp_path), "main") is None
    assert read_create_record(str(tmp_path), "main") is None, "it would count as come back"


@pytest.mark.parametrize("waited_seconds", [4.5, 5.0, 6.0])
def test_a_restore_that_waited_first_is_bounded_by_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waited_seconds: float
) -> None:
    """The error names the bound that a person has set, however little of it was left."""
    bundle, folder, clock = _bundle(tmp_path), str(tmp_path / "pods/u-1"), [100.0]
    spec = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps({**spec, "root": {"path": str(tmp_path / "rootfs")}}))
    given: list[float] = []

    @contextmanager
    def turn(_: str) -> Iterator[None]:
        clock[0] += waited_seconds
        yield

    def run(*_: object, seconds: float, **__: object) -> int:
        given.append(seconds)
        return runc_restore.TOO_LONG

    monkeypatch.setattr(planned_create, "die_with_parent", lambda parent: None)
    monkeypatch.setattr(planned_create, "pod_create_lock", turn)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(runc_restore, "run_program", run)
    write_plan(folder, Plan(RESTORE, fallback=FAIL, containers={"main": MAIN._replace(work=folder, seconds=5.0)}))
    assert planned_create.create(_create(bundle, tmp_path), "runc", folder, "") == FAILED
    assert len(given) == 1
    assert 0 < given[0] <= max(0.5, runc_restore.LEAST_SECONDS)
    result = read_result(folder, "main")
    assert result is not None
    assert "did not end within 5 s" in result.why


def test_beside_a_container_that_continued_none_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, folder = _bundle(tmp_path, "second"), str(tmp_path / "pods/u-1")
    monkeypatch.setattr(planned_create, "die_with_parent", lambda parent: None)
    broken = MAIN._replace(work="/proc/nonexistent")
    write_plan(folder, Plan(RESTORE, containers={"first": MAIN, "second": broken}))
    write_result(folder, "first", ContainerResult(restored=True))
    assert planned_create.create(_create(bundle, tmp_path), "/bin/false", folder, "") == FAILED


@pytest.mark.parametrize("fallback", [COLD, FAIL])
def test_container_that_is_lost_after_another_one_failed_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fallback: str
) -> None:
    bundle, folder = _bundle(tmp_path), str(tmp_path / "pods/u-1")
    monkeypatch.setattr(planned_create, "die_with_parent", lambda parent: None)
    write_plan(folder, Plan(RESTORE, fallback=fallback, containers={"main": MAIN, "second": MAIN}))
    write_create_record(folder, "main", ContainerResult(restored=True, id="c0"))
    write_result(folder, "second", ContainerResult(restored=False, why="no", cold=fallback == COLD))
    status = planned_create.create(_create(bundle, tmp_path), "/bin/true", folder, "")
    assert status == (PASS if fallback == COLD else FAILED)
    result = read_result(folder, "main")
    assert result is not None
    assert (result.restored, result.cold) == (False, fallback == COLD)
    assert "another container of the pod was not restored" in result.why


def test_plans_and_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    full = ContainerPlan("/i", "/w", "/i/rootfs.tar", ("tcp-close",), privileges=ORDINARY)
    plan = Plan(RESTORE, "because", FAIL, {"main": full}, ("prepare",))
    result = ContainerResult(restored=False, why="no", cold=True, log="/w/restore.log", tail=("Error",))
    write_plan(str(tmp_path), plan)
    write_result(str(tmp_path), "main", result)
    assert read_plan(str(tmp_path)) == plan
    assert read_result(str(tmp_path), "main") == result
    assert read_result(str(tmp_path), "another") is None
    assert not Path(plan_path(str(tmp_path)) + ".new").exists()


def test_the_finished_program_ends_well(tmp_path: Path) -> None:
    file = tmp_path / "finished"
    file.write_bytes(build_success_program())
    file.chmod(0o755)
    assert subprocess.run([file], check=False).returncode == 0
    assert build_success_program("aarch64") != build_success_program("x86_64")


def test_a_finished_container_starts_nothing_else() -> None:
    specification: dict[str, Any] = {"process": {"args": ["sh", "-c", "work"]}, "mounts": [{"destination": "/proc"}]}
    replace_process(specification, "/opt/finished")
    assert specification["process"] == {"args": ["/.cedana-finished"]}
    assert [mount["destination"] for mount in specification["mounts"]] == ["/proc", "/.cedana-finished"]
