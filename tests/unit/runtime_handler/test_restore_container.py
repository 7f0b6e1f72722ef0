"""The restore container's program, started as the kubelet starts it, and the agent's side of its volume."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.restoring.file_waits import wait_for_result
from cedana_sched.cluster.node.restoring.restore_container_messages import RestoreContainerMessages
from cedana_sched.component import folder_watches
from cedana_sched.model.errors import RestoreError
from cedana_sched.runtime_handler import file_watcher as changes_module
from cedana_sched.runtime_handler.file_watcher import FileWatcher
from cedana_sched.runtime_handler.wait import SILENT, SILENT_SECONDS, _changed_names, wait

VOLUME = "volumes/kubernetes.io~empty-dir/cedana-restore"


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    folder = tmp_path / "uid" / VOLUME
    folder.mkdir(parents=True)
    ready = tmp_path / "uid/plugins/kubernetes.io~empty-dir/cedana-restore/ready"
    ready.parent.mkdir(parents=True)
    ready.touch()
    return folder


@pytest.fixture
def agent(tmp_path: Path) -> RestoreContainerMessages:
    return RestoreContainerMessages("uid", HostPaths(pods=tmp_path))


def _started(volume: Path, *patience: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-m", "cedana_sched.runtime_handler.wait", str(volume), *patience]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_it_is_patient_for_a_quarter_of_an_hour() -> None:
    assert SILENT_SECONDS == 15 * 60


@pytest.mark.parametrize(
    ("decision", "status", "said"),
    [
        ("restore", 0, "continuing from the snapshot: generation 3"),
        ("cold", 0, "starting from the beginning: generation 3"),
        ("fail", 1, "not started: generation 3"),
        ("else", 1, "not started: the decision 'else' is not known: generation 3"),
    ],
)
def test_it_ends_as_the_agent_decides(
    volume: Path, agent: RestoreContainerMessages, decision: str, status: int, said: str
) -> None:
    with _started(volume) as process:
        asyncio.run(agent.wait_until_running())
        agent.print_line("40 % fetched")
        agent.print_line("80 % fetched")
        asyncio.run(agent.end_with_decision(decision, "generation 3"))
        out, _ = process.communicate(timeout=30)
    assert process.returncode == status
    told = ["40 % fetched", "80 % fetched"]
    assert out.splitlines() == ["waiting until the snapshot is staged on this node", *told, said]


def test_what_was_decided_for_an_earlier_run_says_nothing_about_this_one(
    volume: Path, agent: RestoreContainerMessages
) -> None:
    """The volume outlives a sandbox that dies: the pod began from its beginning, and nobody said so."""
    with _started(volume) as first:
        asyncio.run(agent.wait_until_running())
        asyncio.run(agent.end_with_decision("restore", "generation 3"))
        first.communicate(timeout=30)
    (volume / "decision").write_text("restore\nan earlier version's\n")
    with _started(volume) as second:
        asyncio.run(_another_run(volume))
        assert second.poll() is None
        asyncio.run(agent.end_with_decision("cold", "generation 3 is gone"))
        out, _ = second.communicate(timeout=30)
    assert out.splitlines()[1:] == ["starting from the beginning: generation 3 is gone"]


def test_agent_without_inotify_looks(
    volume: Path, agent: RestoreContainerMessages, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spent(cache_size: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(folder_watches, "Inotify", spent)
    monkeypatch.setattr(folder_watches, "LOOK_SECONDS", 0.01)
    with _started(volume) as process:
        asyncio.run(agent.wait_until_running())
        asyncio.run(agent.end_with_decision("restore", "generation 3"))
        process.communicate(timeout=30)
    assert process.returncode == 0


async def _another_run(volume: Path) -> None:
    """Return when a run has written its number that has taken nothing yet."""
    number = volume / "waiting"
    await wait_for_result(volume, lambda: None if (volume / f"taken.{number.read_text()}").exists() else number)


_AS_NOBODY = """
import os, sys
from cedana_sched.runtime_handler.wait import wait
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sys.exit(wait(sys.argv[1]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_any_user_may_run_it_beside_files_that_are_roots() -> None:
    """The kubelet makes an emptyDir sticky: what the agent has written there is not the container's to remove."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        pods = Path(name)
        volume = pods / "uid" / VOLUME
        volume.mkdir(parents=True)
        ready = pods / "uid/plugins/kubernetes.io~empty-dir/cedana-restore/ready"
        ready.parent.mkdir(parents=True)
        ready.touch()
        pods.chmod(0o755)
        volume.chmod(0o1777)
        agent = RestoreContainerMessages("uid", HostPaths(pods=pods))
        with subprocess.Popen([sys.executable, "-c", _AS_NOBODY, str(volume)], stdout=subprocess.PIPE) as process:
            asyncio.run(agent.wait_until_running())
            asyncio.run(agent.end_with_decision("restore", "why"))
            process.communicate(timeout=30)
        assert process.returncode == 0
        agent.remove_run_files()


def test_decision_for_a_run_that_died_is_repeated_for_the_next(volume: Path, agent: RestoreContainerMessages) -> None:
    with _started(volume) as first:
        asyncio.run(agent.wait_until_running())
        first.kill()
        first.communicate(timeout=30)

    async def decided() -> str:
        deciding = asyncio.create_task(agent.end_with_decision("cold", "why"))
        await wait_for_result(volume, lambda: next(volume.glob("decision.*"), None))
        with await asyncio.to_thread(_started, volume) as second:
            await deciding
            return (await asyncio.to_thread(second.communicate, timeout=30))[0]

    assert "starting from the beginning: why" in asyncio.run(decided())


def test_who_has_taken_a_decision_is_not_waited_for(volume: Path, agent: RestoreContainerMessages) -> None:
    with _started(volume) as process:
        asyncio.run(agent.wait_until_running())
        asyncio.run(agent.end_with_decision("restore", ""))
        process.communicate(timeout=30)
    asyncio.run(agent.end_with_decision("cold", "too late"))
    agent.remove_run_files()
    assert not (volume / "waiting").exists()


def test_a_run_of_an_earlier_version_is_told_and_not_waited_for(volume: Path, agent: RestoreContainerMessages) -> None:
    (volume / "waiting").touch()
    asyncio.run(agent.end_with_decision("restore", "why"))
    assert (volume / "decision").read_text() == "restore\nwhy\n"


def test_an_agent_of_an_earlier_version_is_understood(volume: Path, agent: RestoreContainerMessages) -> None:
    with _started(volume) as process:
        asyncio.run(agent.wait_until_running())
        (volume / "new").write_text("restore\nwhy\n")
        (volume / "new").rename(volume / "decision")
        process.communicate(timeout=30)
    assert process.returncode == 0


def test_it_waits_for_nobody_only_so_long(volume: Path) -> None:
    with _started(volume, "0.2") as process:
        out, _ = process.communicate(timeout=30)
    assert process.returncode == SILENT
    assert out.splitlines()[-1] == ("no sign of this node's agent for 0.2 s: does it run? Ending, to be started again")


@pytest.mark.parametrize("is_told", [True, False])
def test_signs_of_the_agent_are_seen(
    volume: Path, agent: RestoreContainerMessages, monkeypatch: pytest.MonkeyPatch, *, is_told: bool
) -> None:
    if not is_told:
        monkeypatch.setattr(changes_module, "inotify_watch", _without_inotify)
    with FileWatcher(str(volume)) as changes:
        seen = _changed_names(changes, 30.0)
        agent.write_heartbeat()
        assert next(seen) == "alive"
        (volume / "waiting").touch()  # its own
        agent.print_line("line")
        assert next(name for name in seen if name != "alive") == "progress"


def _without_inotify(*folders: str, events: int) -> int:
    raise OSError(errno.EMFILE, f"inotify: {os.strerror(errno.EMFILE)}, {folders}, {events}")


def test_without_inotify_it_looks(
    volume: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pod that never restarts would fail with it."""
    monkeypatch.setattr(changes_module, "inotify_watch", _without_inotify)

    def decide() -> None:
        while not (volume / "waiting").exists():
            time.sleep(0.01)
        number = (volume / "waiting").read_text()
        (volume / "new").write_text("restore\ngeneration 3\n")
        (volume / "new").rename(volume / f"decision.{number}")

    agent = threading.Thread(target=decide)
    agent.start()
    assert wait(str(volume), 30.0) == 0
    agent.join()
    assert "continuing from the snapshot: generation 3" in capsys.readouterr().out


def test_it_ends_when_it_is_told_to(volume: Path, agent: RestoreContainerMessages) -> None:
    with _started(volume) as process:
        asyncio.run(agent.wait_until_running())
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


async def test_the_agent_waits_until_the_container_runs(tmp_path: Path) -> None:
    agent = RestoreContainerMessages("late", HostPaths(pods=tmp_path))
    waiting = asyncio.create_task(agent.wait_until_running())
    for folder in (tmp_path / "late/plugins/kubernetes.io~empty-dir/cedana-restore", tmp_path / "late" / VOLUME):
        await asyncio.sleep(0)
        folder.mkdir(parents=True)
    (tmp_path / "late" / VOLUME / "waiting").touch()
    await asyncio.sleep(0)
    assert not waiting.done(), "the volume may not be mounted yet"
    (tmp_path / "late/plugins/kubernetes.io~empty-dir/cedana-restore/ready").touch()
    async with asyncio.timeout(60):
        await waiting


def test_links_in_the_volume_are_not_followed(tmp_path: Path, volume: Path, agent: RestoreContainerMessages) -> None:
    secret = tmp_path / "secret"
    secret.write_text("as it was")
    for name in ("progress", "decision", "waiting", "alive"):
        (volume / name).symlink_to(secret)
    with pytest.raises(RestoreError, match="progress"):
        agent.print_line("100 %")
    with pytest.raises(RestoreError, match="alive"):
        agent.write_heartbeat()
    asyncio.run(agent.end_with_decision("cold", "none"))
    assert secret.read_text() == "as it was"
    assert (volume / "decision").read_text() == "cold\nnone\n"


def test_a_volume_that_is_gone_or_a_link_is_said(tmp_path: Path) -> None:
    agent = RestoreContainerMessages("uid", HostPaths(pods=tmp_path))
    with pytest.raises(RestoreError, match="volume cedana-restore is not there"):
        asyncio.run(agent.end_with_decision("cold", "none"))
    (tmp_path / "uid/volumes/kubernetes.io~empty-dir").mkdir(parents=True)
    (tmp_path / "uid" / VOLUME).symlink_to(tmp_path)
    with pytest.raises(RestoreError, match="volume cedana-restore is not there"):
        asyncio.run(agent.end_with_decision("cold", "none"))
