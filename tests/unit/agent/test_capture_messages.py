"""What the agent tells a capture process arrives as it was meant."""

from __future__ import annotations

from pathlib import Path

from cedana_sched.agent.capture_messages import (
    CaptureCommitted,
    CaptureFailed,
    CaptureReport,
    CaptureRequest,
    decode_report,
    decode_request,
    encode,
)
from cedana_sched.agent.workload_runtime import RunningContainer, RunningWorkload
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.records import Transfer
from cedana_sched.snapshot.criu_toolchain import Toolchain


def request(*containers: RunningContainer) -> CaptureRequest:
    return CaptureRequest(
        checkpoint_uid="c1",
        identity=Identity("team-a", "sim"),
        workload=RunningWorkload(containers, {"data": Path("/pods/p1/data")}, {"volumes": ["data"]}),
        store={"url": "/store"},
        toolchain=Toolchain("4.2.1", Path("/criu"), Path("/tini"), Path("/nft"), Path("/python"), Path("/preload.so")),
        cache_directory="/cache",
        cache_bytes=1 << 30,
        work_directory="/captures/c1",
        compression="lz4",
        reason="Preempted",
        adapter="test",
        frozen_at=1.5,
        timeout_seconds=60.0,
        launcher=("nsenter", "--"),
    )


def test_a_request_comes_back_with_its_paths() -> None:
    tree = RunningContainer(
        7, Path("/sys/fs/cgroup/x"), "main", ("mnt[/a]:/a",), Path("/bundle/rootfs"), Path("/upper"), {"notes": "text"}
    )
    sent = request(tree, RunningContainer(8, Path("/sys/fs/cgroup/y"), "side"))
    line = encode(sent)
    assert line.endswith(b"}\n")
    assert decode_request(line) == sent


def test_reports_come_back() -> None:
    snapshot = SnapshotRef(Identity("team-a", "sim"), 3)
    reports: list[CaptureReport] = [CaptureCommitted(snapshot, Transfer(1, 2, 3, 4)), CaptureFailed("why", True)]
    assert [decode_report(encode(report)) for report in reports] == reports


def test_names_that_are_no_text_keep_nothing_from_being_said() -> None:
    """A pod may lead a link on the way to its volume to where no text leads."""
    tree = RunningContainer(7, Path("/x"), "main", ("mnt[/a\udcff]:/a",), Path("/bundle\udcff/rootfs"))
    (arrived,) = decode_request(encode(request(tree))).workload.containers
    assert arrived.externals == ("mnt[/a\ufffd]:/a",)
    assert arrived.root == Path("/bundle\ufffd/rootfs")
    assert decode_report(encode(CaptureFailed("\udcff", False))) == CaptureFailed("\ufffd", False)


def test_each_container_has_a_folder_of_its_own_and_a_single_tree_that_of_the_capture() -> None:
    tree = request()
    assert tree.criu_directory("") == Path("/captures/c1")
    assert tree.criu_directory("lock") == Path("/captures/c1/containers/lock")
