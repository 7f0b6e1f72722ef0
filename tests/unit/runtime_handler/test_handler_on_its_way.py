"""What fails in the handler beside `runc restore` begins no container anew: it is waited out, or the call fails."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.runtime_handler import (
    containerd_lost_containers,
    handler,
    plan,
    planned_create,
    runc_restore,
    shortage_retries,
)
from cedana_sched.runtime_handler.handler_exit_codes import FAILED, PASS
from cedana_sched.runtime_handler.plan import (
    COLD,
    FAIL,
    RESTORE,
    ContainerPlan,
    ContainerResult,
    Plan,
    lost_containers_of,
    read_create_record,
    read_result,
    write_create_record,
    write_plan,
    write_result,
)
from cedana_sched.runtime_handler.privilege_comparison import Confinement, Credentials, Privileges

RESTORE_SUCCEEDED = ContainerResult(restored=True, id="c1")


class Call:
    """A `create` of container c1, `main` of a pod, over a runc that is never run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.bundle, self.log = folder / "pods/u-1", folder / "bundle", folder / "runc.log"
        self.patch = patch
        self.removed: list[str] = []
        self.continued = 0
        self.bundle.mkdir()
        notes = {"container-type": "container", "container-name": "main", "sandbox-uid": "u-1", "sandbox-id": "s"}
        annotations = {f"io.kubernetes.cri.{key}": value for key, value in notes.items()}
        (self.bundle / "config.json").write_text(json.dumps({"annotations": annotations}, separators=(",", ":")))
        patch.setattr(planned_create, "die_with_parent", lambda parent: None)
        patch.setattr(planned_create, "restore_with_runc", self._continue)
        patch.setattr(shortage_retries, "AGAIN_SECONDS", 0.001)
        for module in (planned_create, containerd_lost_containers):
            patch.setattr(
                module, "remove_container", lambda runc, call, container_id: self.removed.append(container_id)
            )

    def _continue(self, *_: object, **__: object) -> ContainerResult:
        self.continued += 1
        return RESTORE_SUCCEEDED

    def plan(self, decision: str = RESTORE, *, seconds: float = 110.0, **more: Any) -> None:
        container = ContainerPlan(
            "/images", str(self.folder), seconds=seconds, privileges=Privileges(Confinement(), Credentials())
        )
        write_plan(str(self.folder), Plan(decision, containers={"main": container, "beside": container}, **more))
        (self.folder / "held").write_text("/the/group\n")  # CRIU's script has written it

    def lack(self, module: object, name: str, times: int, *, after: int = 0) -> None:
        """The first so many calls fail, as where all files of the machine are open."""
        original: Callable[..., Any] = getattr(module, name)
        called = 0

        def lacking(*given: Any, **named: Any) -> Any:
            nonlocal called
            called += 1
            if after < called <= after + times:
                raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
            return original(*given, **named)

        self.patch.setattr(module, name, lacking)

    def make(self) -> int:
        (self.folder.parent / "states/c1").mkdir(parents=True, exist_ok=True)
        words = ["--root", str(self.folder.parent / "states"), "--log", str(self.log)]
        return handler.apply_pod_plan(
            [*words, "create", "--bundle", str(self.bundle), "c1"], "runc", str(self.log.parent), ""
        )

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    return Call(tmp_path, monkeypatch)


_FIRST = [
    pytest.param(planned_create, "read_plan", id="its plan is read"),
    pytest.param(planned_create, "pod_create_lock", id="it takes its turn"),
    pytest.param(planned_create, "end_lost_containers", id="the lost are ended"),
    pytest.param(planned_create, "wait_for_volumes", id="the volumes are waited for"),
    pytest.param(planned_create, "write_create_record", id="its name is kept"),
    pytest.param(planned_create, "restore_with_runc", id="runc restore is prepared"),
]


@pytest.mark.parametrize(("module", "name"), _FIRST)
def test_what_is_short_for_a_moment_is_waited_out(call: Call, module: object, name: str) -> None:
    call.plan()
    call.lack(module, name, 2)
    assert call.make() == 0
    assert call.continued == 1
    assert (begun := read_create_record(str(call.folder), "main")) is not None
    assert begun.restored


@pytest.mark.parametrize(("module", "name"), _FIRST[1:])
@pytest.mark.parametrize("fallback", [COLD, FAIL])
def test_what_stays_short_fails_the_call_and_decides_nothing(
    call: Call, module: object, name: str, fallback: str
) -> None:
    call.plan(fallback=fallback, seconds=0.02)
    call.lack(module, name, 10**6)
    assert call.make() == FAILED
    assert call.continued == 0
    assert read_result(str(call.folder), "main") is None
    assert "Too many open files in system" in call.said()


def test_plan_that_cannot_be_read_is_not_none(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call.plan()
    monkeypatch.setattr(planned_create, "GLANCE_SECONDS", 0.0)
    real = open

    def lacking(file: Any, *given: Any, **named: Any) -> Any:
        if str(file).endswith("plan.json"):
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        return real(file, *given, **named)

    monkeypatch.setattr("builtins.open", lacking)
    assert call.make() == FAILED


def test_defect_before_it_is_continued_fails_the_call(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call.plan()

    def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(planned_create, "end_lost_containers", broken)
    assert call.make() == FAILED
    assert read_result(str(call.folder), "main") is None
    assert "KeyError" in call.said()


def test_plan_that_goes_meanwhile_starts_nothing(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call.plan()
    monkeypatch.setattr(planned_create, "end_lost_containers", lambda *_: (call.folder / "plan.json").unlink())
    assert call.make() == FAILED
    assert call.continued == 0


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        pytest.param(planned_create, "write_create_record", 1, id="its result is kept"),
        pytest.param(planned_create, "mark_restored", 0, id="its start is told"),
    ],
)
def test_what_has_come_back_and_cannot_be_written_down_is_removed(
    call: Call, module: object, name: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as lost then, and comes back once more."""
    monkeypatch.setattr(planned_create, "KEEP_SECONDS", 0.01)
    call.plan()
    call.lack(module, name, 10**6, after=after)
    assert call.make() == FAILED
    assert call.removed == ["c1"]
    assert read_result(str(call.folder), "main") is None
    assert (begun := read_create_record(str(call.folder), "main")) is not None
    assert begun.id == "c1"


def test_what_has_come_back_waits_until_it_can_be_written_down(call: Call) -> None:
    call.plan()
    call.lack(planned_create, "mark_restored", 3)
    assert call.make() == 0
    assert call.removed == []


def test_lost_one_without_a_name_removes_nobody(call: Call) -> None:
    call.plan()
    write_create_record(str(call.folder), "main", ContainerResult(restored=False))
    assert call.make() == 0
    assert call.removed == []


def test_lost_one_that_cannot_be_marked_is_waited_for(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call.plan()
    write_create_record(str(call.folder), "main", ContainerResult(restored=True, id="c0"))
    call.lack(containerd_lost_containers, "mark_lost", 1)
    monkeypatch.setattr(
        planned_create, "wait_for_volumes", lambda *_: bool(lost_containers_of(str(call.folder), _read(call))) and False
    )
    assert call.make() == FAILED
    assert lost_containers_of(str(call.folder), _read(call)) == ["main"]
    assert call.removed == ["c0", "c0"]


def _read(call: Call) -> Plan:
    found = plan.read_plan(str(call.folder))
    assert found is not None
    return found


def test_none_begins_anew_beside_one_that_came_back_before_it_was_decided(call: Call) -> None:
    call.plan(COLD, sandbox="s", why="not restored within 600 s")
    write_result(str(call.folder), "beside", ContainerResult(restored=True))
    assert call.make() == FAILED
    assert "not restored within 600 s" in call.said()


def test_one_that_came_back_and_is_started_again_begins_anew(call: Call) -> None:
    call.plan(COLD, sandbox="s")
    for name in ("main", "beside"):
        write_result(str(call.folder), name, ContainerResult(restored=True))
    assert call.make() == PASS


@pytest.mark.parametrize(("decision", "status"), [(COLD, PASS), (FAIL, FAILED)])
def test_what_a_killed_create_has_left_is_ended_whatever_was_decided(call: Call, decision: str, status: int) -> None:
    call.plan(decision, sandbox="s")
    write_create_record(str(call.folder), "main", ContainerResult(restored=False, id="c0"))
    assert call.make() == status
    assert call.removed == ["c0"]


def test_error_that_cannot_be_said_is_an_error_all_the_same(call: Call) -> None:
    call.plan(FAIL, why="no room")
    call.log.mkdir()
    assert call.make() == FAILED


def test_program_that_cannot_be_waited_for_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on restoring a container that is taken for failed."""
    ended: list[int] = []

    def lacking(child: int, *_: object) -> int:
        ended.append(child)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(runc_restore, "_wait_child", lacking)
    with pytest.raises(OSError, match="Too many open files"):
        runc_restore.run_program("/bin/sleep", ["600"])
    with pytest.raises(ProcessLookupError):
        os.kill(ended[0], 0)


@pytest.mark.parametrize("fallback", [COLD, FAIL])
def test_nothing_comes_back_beside_one_that_did_not(call: Call, fallback: str) -> None:
    """It would run from the snapshot beside one that began anew."""
    call.plan(fallback=fallback)
    write_result(str(call.folder), "beside", ContainerResult(restored=False, why="no", cold=fallback == COLD))
    assert call.make() == (PASS if fallback == COLD else FAILED)
    assert call.continued == 0
    result = read_result(str(call.folder), "main")
    assert result is not None
    assert (result.restored, result.cold) == (False, fallback == COLD)
