"""The restore container's program, started as the kubelet starts it, and the agent's side of its volume."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cedana_sched.cluster.node.containers.places import Places
from cedana_sched.cluster.node.returning.sidecar import RestoreContainer
from cedana_sched.model.errors import RestoreError

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
def agent(tmp_path: Path) -> RestoreContainer:
    return RestoreContainer("uid", Places(pods=tmp_path))


def _started(volume: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-m", "cedana_sched.runtime.wait", str(volume)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("decision", "status", "said"),
    [
        ("restore", 0, "continuing from the snapshot: generation 3"),
        ("cold", 0, "starting from the beginning: generation 3"),
        ("fail", 1, "not started: generation 3"),
        ("else", 1, "not started: the decision 'else' is not known: generation 3"),
    ],
)
@pytest.mark.parametrize("before", [True, False])
def test_it_ends_as_the_agent_decides(
    volume: Path, agent: RestoreContainer, decision: str, status: int, said: str, before: bool
) -> None:
    if before:
        agent.decide(decision, "generation 3")
    with _started(volume) as process:
        asyncio.run(agent.waits())
        if not before:
            agent.tell("40 % fetched")
            agent.tell("80 % fetched")
            agent.decide(decision, "generation 3")
        out, _ = process.communicate(timeout=30)
    assert process.returncode == status
    told = [] if before else ["40 % fetched", "80 % fetched"]
    assert out.splitlines() == ["waiting for the snapshot to be laid on this node", *told, said]


def test_it_ends_when_it_is_told_to(volume: Path, agent: RestoreContainer) -> None:
    with _started(volume) as process:
        asyncio.run(agent.waits())
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


async def test_the_agent_waits_until_the_container_runs(tmp_path: Path) -> None:
    agent = RestoreContainer("late", Places(pods=tmp_path))
    waiting = asyncio.create_task(agent.waits())
    for folder in (tmp_path / "late/plugins/kubernetes.io~empty-dir/cedana-restore", tmp_path / "late" / VOLUME):
        await asyncio.sleep(0)
        folder.mkdir(parents=True)
    (tmp_path / "late" / VOLUME / "waiting").touch()
    await asyncio.sleep(0)
    assert not waiting.done(), "the volume may not be mounted yet"
    (tmp_path / "late/plugins/kubernetes.io~empty-dir/cedana-restore/ready").touch()
    async with asyncio.timeout(10):
        await waiting


def test_links_in_the_volume_are_not_followed(tmp_path: Path, volume: Path, agent: RestoreContainer) -> None:
    secret = tmp_path / "secret"
    secret.write_text("as it was")
    for name in ("progress", "decision"):
        (volume / name).symlink_to(secret)
    with pytest.raises(RestoreError, match="progress"):
        agent.tell("100 %")
    agent.decide("cold", "none")
    assert secret.read_text() == "as it was"
    assert (volume / "decision").read_text() == "cold\nnone\n"


def test_a_volume_that_is_gone_or_a_link_is_said(tmp_path: Path) -> None:
    agent = RestoreContainer("uid", Places(pods=tmp_path))
    with pytest.raises(RestoreError, match="volume cedana-restore is not there"):
        agent.decide("cold", "none")
    (tmp_path / "uid/volumes/kubernetes.io~empty-dir").mkdir(parents=True)
    (tmp_path / "uid" / VOLUME).symlink_to(tmp_path)
    with pytest.raises(RestoreError, match="volume cedana-restore is not there"):
        agent.decide("cold", "none")
