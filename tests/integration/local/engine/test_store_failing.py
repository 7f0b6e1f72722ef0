"""The store fails at the worst moment: what becomes of the job is what its policy says, and the job says why."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import tenacity

from cedana_sched.model.errors import DumpError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.integration.local.engine.conftest import ONE_GROUP, Engine
from tests.integration.local.engine.processes import capture_of, kill
from tests.integration.local.engine.witnesses import Witness
from tests.leftovers import mounts_below
from tests.servers.gate import Gate
from tests.servers.versitygw import ACCESS_KEY, SECRET_KEY, Server, s3_server

__all__ = ["s3_server"]

pytestmark = [pytest.mark.criu, pytest.mark.s3]

KEEP_RUNNING = ONE_GROUP + 'checkpointPolicy = { deadlineSeconds = 4, onCheckpointFailure = "KeepRunning" }\n'
KEEP_RUNNING_LONGER = KEEP_RUNNING.replace("deadlineSeconds = 4", "deadlineSeconds = 12")
LET_GO = ONE_GROUP + "checkpointPolicy = { deadlineSeconds = 4 }\n"
PATIENT = ONE_GROUP + "checkpointPolicy = { deadlineSeconds = 60 }\n"
SHORT_OF_ROOM = (
    ONE_GROUP
    + "checkpointPolicy = { deadlineSeconds = 60, restoreDeadlineSeconds = 10, retention = { keepLast = 1 } }\n"
)
SOON_STALLED = "stallSeconds = 0.5\n" + ONE_GROUP + "checkpointPolicy = { deadlineSeconds = 300 }\n"
_AS_OFTEN_AS_IT_IS_LATE = tenacity.AsyncRetrying(
    retry=tenacity.retry_if_exception_message(match=".*not committed within"),
    stop=tenacity.stop_after_delay(60),
    reraise=True,
)
"""The policy's few seconds are for a store that is away; a busy machine may need more of them for a good one."""
COMMIT = rb"PUT [^ ]*\.manifest"
ANYTHING = rb"(GET|PUT|POST|HEAD) "


@pytest.fixture
async def gate(s3_server: Server) -> AsyncIterator[Gate]:
    async with Gate(s3_server.port) as gate:
        yield gate


@pytest.fixture
def bucket(s3_server: Server) -> str:
    storage = s3_server.new_bucket().s3
    assert storage is not None
    return f"s3://{storage.bucket}/snapshots"


def on_s3(home: Path, configuration: str, place: str, port: int) -> Engine:
    environment = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
    }
    return Engine(home, configuration, place, ("--s3-allow-http",), environment)


@pytest.fixture
async def behind_gate(
    request: pytest.FixtureRequest, home: Path, toolchain: Toolchain, gate: Gate, bucket: str
) -> AsyncIterator[Engine]:
    """An engine whose store is behind a gate; its configuration is the test's parameter."""
    engine = on_s3(home, request.param, bucket, gate.port)
    await engine.start()
    yield engine
    gate.release()
    await engine.end()


async def preempted(witness: Witness) -> None:
    async with witness.engine.client() as client:
        await client.preempt(witness.uid)


@pytest.mark.parametrize("behind_gate", [PATIENT], indirect=True)
@pytest.mark.parametrize("part", ["engine", "capture"])
async def test_who_dies_between_the_bytes_and_the_commit_costs_no_work(
    behind_gate: Engine, gate: Gate, part: str
) -> None:
    witness = await Witness.submit(behind_gate)
    await witness.running()
    gate.hold(COMMIT)
    await preempted(witness)
    await gate.reached.wait()
    assert (await behind_gate.job(witness.uid)).phase == "Preempting"
    if part == "capture":
        kill(capture_of(behind_gate))
        gate.release()
    else:
        await behind_gate.kill()
        gate.release()
        await behind_gate.start()
    job = await witness.running(2)
    assert job.runs[1].restored_from is not None
    assert witness.rewinds == 0
    await witness.end()


@pytest.mark.parametrize("behind_gate", [KEEP_RUNNING], indirect=True)
async def test_a_store_that_stops_answering_leaves_the_job_running(behind_gate: Engine, gate: Gate) -> None:
    witness = await Witness.submit(behind_gate, mib=64)
    await witness.running()
    gate.hold(ANYTHING)
    await preempted(witness)
    kept = await behind_gate.until(witness.uid, lambda job: job.phase == "Running", seconds=30)
    assert "not committed within 4 s" in kept.why
    counted = len(witness.beats)
    await witness.counts_on(counted + 10)
    assert (witness.rewinds, len(kept.runs)) == (0, 1)
    await witness.end()


@pytest.mark.parametrize("behind_gate", [LET_GO], indirect=True)
async def test_a_store_that_stops_answering_does_not_hold_the_eviction(behind_gate: Engine, gate: Gate) -> None:
    witness = await Witness.submit(behind_gate, mib=64)
    await witness.running()
    gate.hold(ANYTHING)
    await preempted(witness)
    gone = await behind_gate.until(witness.uid, lambda job: job.runs[0].ended_at is not None, seconds=20)
    assert gone.checkpoint is not None
    assert (gone.runs[0].ended_at or 0.0) - gone.checkpoint.deadline < 10
    gate.release()
    back = await witness.running(2)
    assert back.runs[1].restored_from is None
    assert "not committed within 4 s" in (back.runs[1].cold_because or ""), back.runs
    assert witness.rewinds == 1
    await witness.end(cold_starts=1)


@pytest.mark.parametrize("behind_gate", [PATIENT], indirect=True)
async def test_a_store_that_is_away_while_a_job_returns_costs_time_and_no_work(behind_gate: Engine, gate: Gate) -> None:
    witness = await Witness.submit(behind_gate)
    await witness.running()
    async with behind_gate.client() as client:
        await client.checkpoint(witness.uid, leave_running=False)
        gate.hold(ANYTHING)
        await client.restore(witness.uid)
        await gate.reached.wait()
        gate.release()
    back = await witness.running(2)
    assert back.runs[1].restored_from is not None
    await witness.end()


@pytest.mark.parametrize("behind_gate", [SOON_STALLED], indirect=True)
async def test_a_commit_that_hangs_is_ended_long_before_the_deadline_and_begun_again(
    behind_gate: Engine, gate: Gate
) -> None:
    witness = await Witness.submit(behind_gate)
    await witness.running()
    gate.hold(COMMIT)
    await preempted(witness)
    await gate.reached.wait()
    hanging = os.pidfd_open(capture_of(behind_gate))
    try:
        async with asyncio.timeout(60):  # a bucket's client gives up after 50 s, the checkpoint after 300 s
            await asyncio.to_thread(select.select, [hanging], [], [], 25)
    finally:
        os.close(hanging)
    gate.release()
    back = await witness.running(2)
    assert back.runs[1].restored_from is not None, back.runs
    assert witness.rewinds == 0
    assert "nothing of the snapshot could be read or stored for 2 s" in behind_gate.log.read_text()
    await witness.end()


@pytest.mark.parametrize("behind_gate", [SHORT_OF_ROOM], indirect=True)
async def test_what_is_done_after_an_outage_does_not_push_out_what_was_done_before(
    behind_gate: Engine, gate: Gate
) -> None:
    witness = await Witness.submit(behind_gate)
    await witness.running()
    async with behind_gate.client() as client:
        await client.checkpoint(witness.uid, leave_running=False)
        reached = witness.beats[-1]
        gate.hold(ANYTHING)
        await client.restore(witness.uid)
        cold = await witness.running(2)
        assert "not restored within 10 s" in (cold.runs[1].cold_because or ""), cold.runs
        gate.release()
        for run in range(3, 6):  # retention keeps one, and follows each
            await client.checkpoint(witness.uid, leave_running=False)
            await client.restore(witness.uid)
            await witness.running(run)
        await client.checkpoint(witness.uid, leave_running=False)
        cold_beats = len(witness.beats)
        await client.restore(witness.uid, 1)
        back = await witness.running(6)
    assert back.runs[5].restored_from == "default/witness/0/main@1", back.runs
    assert witness.beats[cold_beats] == reached + 1
    await witness.end()  # what it wrote after its cold start is taken back with it


@pytest.mark.parametrize("behind_gate", [PATIENT], indirect=True)
async def test_an_engine_stops_at_once_while_its_store_does_not_answer(behind_gate: Engine, gate: Gate) -> None:
    gate.hold(ANYTHING)
    witness = await Witness.submit(behind_gate)
    await gate.reached.wait()
    await behind_gate.stop(seconds=10)
    gate.release()
    await behind_gate.start()
    job = await witness.running()
    assert (len(job.runs), job.runs[0].cold_because) == (1, None)
    await witness.end()


async def test_a_store_that_dies_during_a_dump_leaves_the_job_running(
    home: Path, toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server = Server(tmp_path_factory.mktemp("dying"))
    server.start()
    location = server.new_bucket().s3
    assert location is not None
    engine = on_s3(home, KEEP_RUNNING_LONGER, f"s3://{location.bucket}", server.port)
    try:
        await engine.start()
        witness = await Witness.submit(engine, mib=192, memory="1Gi")
        await witness.running()
        await preempted(witness)
        await engine.until(witness.uid, lambda job: job.checkpoint is not None and job.checkpoint.read_bytes > 0)
        server.kill()
        kept = await engine.until(witness.uid, lambda job: job.phase == "Running", seconds=60)
        assert kept.runs[0].ended_at is None
        await witness.counts_on(len(witness.beats) + 10)
        assert witness.rewinds == 0
        server.start()
        async with engine.client() as client:
            async for attempt in _AS_OFTEN_AS_IT_IS_LATE:
                with attempt:
                    job = await client.checkpoint(witness.uid, leave_running=True)
        assert job.checkpoint is not None
        assert job.checkpoint.snapshot == "default/witness/0/main@1"
        await witness.end()
    finally:
        await engine.end()
        server.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "small", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture
async def on_small_disk(small_disk: Path, home: Path, toolchain: Toolchain) -> AsyncIterator[Engine]:
    engine = Engine(home, store=str(small_disk))
    await engine.start()
    yield engine
    await engine.end()


async def test_a_full_store_is_said_and_leaves_the_job_running(on_small_disk: Engine) -> None:
    witness = await Witness.submit(on_small_disk, mib=64, deadline_seconds=12.0)
    await witness.running()
    async with on_small_disk.client() as client:
        with pytest.raises(DumpError):
            await client.checkpoint(witness.uid, leave_running=True)
    assert "No space left on device" in on_small_disk.log.read_text(), "the last attempt may have been cut off"
    await witness.counts_on(len(witness.beats) + 10)
    assert witness.rewinds == 0
    await witness.end()


async def run_program(*words: str | Path) -> None:
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0


@pytest.fixture
async def on_mount(home: Path, toolchain: Toolchain) -> AsyncIterator[Engine]:
    """An engine whose store is a mount."""
    export, point = home / "export", home / "mnt"
    export.mkdir()
    point.mkdir()
    await run_program("mount", "--bind", export, point)
    engine = Engine(home, PATIENT, str(point))
    await engine.start()
    yield engine
    await engine.end()
    if mounts_below(point):
        await run_program("umount", "--lazy", point)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_job_waits_for_a_store_whose_mount_is_away(on_mount: Engine, restarted: bool) -> None:
    witness = await Witness.submit(on_mount)
    await witness.running()
    async with on_mount.client() as client:
        await client.checkpoint(witness.uid, leave_running=False)
    await run_program("umount", "--lazy", on_mount.store)
    if restarted:
        await on_mount.stop()
        await on_mount.start()
    async with on_mount.client() as client, on_mount.client() as asking, asyncio.timeout(60):
        is_asked = False
        async for change in client.watch():
            if not is_asked:
                is_asked = True
                await asking.restore(witness.uid)
            if change.event is not None and "is not mounted" in change.event.text:
                break
    assert list(Path(on_mount.store).iterdir()) == []
    await run_program("mount", "--bind", on_mount.home / "export", on_mount.store)
    back = await witness.running(2)
    assert back.runs[1].restored_from == "default/witness/0/main@1", back.runs
    assert witness.rewinds == 0
    await witness.end()


def damage(store: Path) -> None:
    """Change a byte in the middle of every pack."""
    for pack in store.glob("v1/*/packs/*"):
        with pack.open("r+b") as file:
            file.seek(pack.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 255]))


FAIL = ONE_GROUP + 'checkpointPolicy = { onRestoreFailure = "Fail" }\n'


@pytest.fixture
async def configured(request: pytest.FixtureRequest, home: Path, toolchain: Toolchain) -> AsyncIterator[Engine]:
    engine = Engine(home, configuration=request.param)
    await engine.start()
    yield engine
    await engine.end()


@pytest.mark.parametrize("configured", [ONE_GROUP], indirect=True)
async def test_a_damaged_snapshot_is_a_cold_start_that_says_why(configured: Engine) -> None:
    witness = await Witness.submit(configured)
    await witness.running()
    async with configured.client() as client:
        await client.checkpoint(witness.uid, leave_running=False)
        damage(Path(configured.store))
        await client.restore(witness.uid)
    back = await witness.running(2)
    assert back.runs[1].restored_from is None
    assert "damaged" in (back.runs[1].cold_because or ""), back.runs
    await witness.end(cold_starts=1)


@pytest.mark.parametrize("configured", [FAIL], indirect=True)
async def test_a_damaged_snapshot_fails_the_job_where_the_policy_says_so(configured: Engine) -> None:
    witness = await Witness.submit(configured)
    await witness.running()
    async with configured.client() as client:
        await client.checkpoint(witness.uid, leave_running=False)
        damage(Path(configured.store))
        await client.restore(witness.uid)
    failed = await configured.until_phase(witness.uid, "Failed", "Running")
    assert failed.phase == "Failed"
    assert "damaged" in failed.why


@pytest.mark.parametrize("configured", [ONE_GROUP], indirect=True)
async def test_a_snapshot_of_another_machine_is_refused_by_name(configured: Engine) -> None:
    witness = await Witness.submit(configured)
    await witness.running()
    async with configured.client() as client:
        await client.checkpoint(witness.uid, leave_running=False)
    of_another_machine(configured.store)
    async with configured.client() as client:
        await client.restore(witness.uid)
    back = await witness.running(2)
    assert "this machine's CPU lacks flux_capacitor" in (back.runs[1].cold_because or ""), back.runs
    await witness.end(cold_starts=1)


def of_another_machine(place: str) -> None:
    """Take the newest snapshot again, as a machine with one CPU feature more would have."""
    store = SnapshotStore.open(StorageConfig.parse(place))
    identity = Identity("default", "witness", 0)
    ours = store.open_snapshot(SnapshotRef(identity, 1)).manifest.metadata
    machine = msgspec.structs.replace(
        ours.compatibility, cpu_features=ours.compatibility.cpu_features | {"flux_capacitor"}
    )
    with store.begin(identity, checkpoint_uid="of-another-machine") as writer:
        with writer.open_stream("inventory.img") as stream:
            stream.write(b"nothing")
        writer.commit(msgspec.structs.replace(ours, compatibility=machine, checkpoint_uid="of-another-machine"))
