"""What a store or a node that fails for a moment means for a workload's return: it is tried again, not started cold."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cedana_sched.agent.compatibility_facts import compatibility_of_node
from cedana_sched.agent.dump_prefetching import DumpPrefetching
from cedana_sched.agent.restore_orders import DAMAGED_TIMES, RestoreOrders
from cedana_sched.agent.staging import Staging
from cedana_sched.agent.store_threads import StoreThreads
from cedana_sched.agent.workload_runtime import RUNS_ON, SnapshotOrigin
from cedana_sched.coordinator.core import Timing
from cedana_sched.model import orders
from cedana_sched.model.errors import (
    CedanaSchedError,
    FilesChangedError,
    NewerFormatError,
    RestoreError,
    SealedError,
    StoreDeniedError,
    StoreUnavailableError,
)
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.manifest import FORMAT_VERSION, SnapshotMetadata
from cedana_sched.snapshot.restore import RestoreInterruptedError
from cedana_sched.store import layout
from cedana_sched.store.manifest_format import encode_manifest
from cedana_sched.store.reader import PATIENCE_SECONDS
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.counting import CountingBackend
from tests.servers.snapshots import take
from tests.unit.agent.agent_builders import WORKLOAD, FakeRuntime

MD = Identity("default", "md")
FACTS = {"mounts": ["/proc"]}
HEAD = 120
"""Where a byte of a manifest's header is."""
CONTINUE = orders.RestoreSnapshot("r1", WORKLOAD, SnapshotRef(MD, 1))
STAGE = orders.Stage("r1", WORKLOAD, SnapshotRef(MD, 1))


class Bench:
    def __init__(self, folder: Path) -> None:
        for name in ("store", "cgroup"):
            (folder / name).mkdir()
        self.store_folder = folder / "store"
        self.store = SnapshotStore.open(StorageConfig(path=self.store_folder))
        self.runtime = FakeRuntime(folder / "cgroup")
        self.runtime.runs = False
        self.staged = folder / "staged"
        self.staging = Staging(self.staged, "4.2.1")
        self.threads = StoreThreads()
        self.returns = RestoreOrders(self.runtime, self.runtime, self.store, self.staging, self.threads)

    def commit(self, checkpoint_uid: str = "c1", criu: str = "4.2.1") -> None:
        with self.store.begin(MD, checkpoint_uid=checkpoint_uid) as writer:
            with writer.open_stream("inventory.img") as stream:
                stream.write(b"images")
            writer.commit(self.metadata(checkpoint_uid, criu))

    def spoil_format(self, generation: int) -> None:
        """As a newer version would have written it."""
        newest = SnapshotRef(MD, generation)
        written = encode_manifest(self.store.open_snapshot(newest).manifest, version=FORMAT_VERSION + 1)
        file = self.store_folder / layout.manifest_key(newest)
        file.chmod(0o600)
        file.write_bytes(written)

    @staticmethod
    def metadata(checkpoint_uid: str, criu: str = "4.2.1") -> SnapshotMetadata:
        here = compatibility_of_node(criu)
        return SnapshotMetadata(checkpoint_uid=checkpoint_uid, compatibility=here, taken_at=1.0, runtime=FACTS)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_numbers_of_the_page() -> None:
    """A read is repeated for two minutes; what is read damaged is read five times within 15 s."""
    assert PATIENCE_SECONDS == 2 * 60
    assert DAMAGED_TIMES == 5
    assert sum(Timing().retry_backoff(number) for number in range(1, DAMAGED_TIMES)) == 15


@pytest.mark.parametrize("wanted", [None, SnapshotRef(MD, 1)])
async def test_a_node_that_never_saw_the_store_asks_again(bench: Bench, wanted: SnapshotRef | None) -> None:
    returns = RestoreOrders(bench.runtime, bench.runtime, bench.store, bench.staging, bench.threads, store_in_use=True)
    said = await returns.find(orders.FindSnapshot("r1", MD, wanted))
    assert isinstance(said, orders.StageFailed)
    assert said.retryable
    assert "is not mounted" in said.why

    bench.commit()
    assert await returns.find(orders.FindSnapshot("r1", MD, wanted)) == orders.SnapshotFound("r1", SnapshotRef(MD, 1))


async def test_the_newest_snapshot_that_was_not_called_off_is_found(bench: Bench) -> None:
    for uid in ("c1", "c2"):
        bench.commit(uid)
    find = orders.FindSnapshot("r1", MD)
    assert await bench.returns.find(find) == orders.SnapshotFound("r1", SnapshotRef(MD, 2))
    assert await bench.returns.find(orders.FindSnapshot("r1", MD, excluding=("c2",))) == orders.SnapshotFound(
        "r1", SnapshotRef(MD, 1)
    )


async def test_a_generation_that_is_avoided_is_passed_over(bench: Bench) -> None:
    for uid in ("c1", "c2", "c3"):
        bench.commit(uid)
    find = orders.FindSnapshot("r1", MD, avoiding=(3, 1))
    assert await bench.returns.find(find) == orders.SnapshotFound("r1", SnapshotRef(MD, 2))
    assert await bench.returns.find(orders.FindSnapshot("r1", MD, avoiding=(1, 2, 3))) == orders.SnapshotFound("r1")


@pytest.mark.parametrize("kind", [StoreUnavailableError, StoreDeniedError, SealedError])
async def test_a_store_that_is_away_is_no_answer_and_neither_is_a_key_that_is_on_its_way(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: type[CedanaSchedError]
) -> None:
    def away(*_: object, **__: object) -> None:
        raise kind("the store does not answer")

    monkeypatch.setattr(bench.store, "latest_snapshot_of", away)
    answer = await bench.returns.find(orders.FindSnapshot("r1", MD))
    assert isinstance(answer, orders.StageFailed)
    assert answer.retryable
    assert "the store does not answer" in answer.why


async def test_a_snapshot_of_a_newer_criu_waits_for_an_upgrade_of_the_node(bench: Bench) -> None:
    """The pod cannot go elsewhere any more, and in a rollout of the agents its node's turn comes."""
    bench.commit(criu="4.3")
    answer = await bench.returns.stage(STAGE)
    assert answer == orders.StageFailed(
        "r1",
        "default/md/0/main@1 was taken with CRIU 4.3, which is newer than this machine's 4.2.1 (upgrade cedana-sched "
        "here, which brings CRIU along: in a cluster this node's agent)",
        retryable=True,
    )
    assert not bench.staging.images_folder("r1").exists()
    with pytest.raises(NewerFormatError):  # staged by no agent: it was ordered by one that was newer
        await bench.returns.restore_snapshot(CONTINUE)
    upgraded = RestoreOrders(bench.runtime, bench.runtime, bench.store, Staging(bench.staged, "4.3.1"), bench.threads)
    assert await upgraded.stage(STAGE) == orders.Staged("r1")


async def test_a_snapshot_that_another_machine_has_taken_is_refused_for_good(bench: Bench) -> None:
    with bench.store.begin(MD, checkpoint_uid="c1") as writer:
        elsewhere = msgspec.structs.replace(compatibility_of_node("4.3"), architecture="other")
        writer.commit(msgspec.structs.replace(bench.metadata("c1"), compatibility=elsewhere))
    answer = await bench.returns.stage(STAGE)
    assert isinstance(answer, orders.StageFailed)
    assert not answer.retryable
    assert "was taken on other, this machine is" in answer.why


def _with_pack_spoilt(bench: Bench) -> Callable[[], None]:
    """Give every read of the packs other bytes; returns what mends them."""
    packs = [path for path in (bench.store_folder).rglob("packs/**/*") if path.is_file()]
    written = {path: path.read_bytes() for path in packs}
    assert written
    for path, data in written.items():
        path.write_bytes(bytes(byte ^ 0xFF for byte in data))

    def mend() -> None:
        for path, data in written.items():
            path.write_bytes(data)

    return mend


def _with_manifest_spoilt(bench: Bench) -> Callable[[], None]:
    """Give every read of the first generation's manifest another byte in its head; returns what mends it."""
    manifest = bench.store_folder / layout.manifest_key(SnapshotRef(MD, 1))
    written = manifest.read_bytes()
    manifest.write_bytes(bytes(byte ^ 0xFF if at == HEAD else byte for at, byte in enumerate(written)))

    def mend() -> None:
        manifest.write_bytes(written)

    return mend


async def test_bytes_that_are_wrong_for_a_while_cost_no_work(bench: Bench) -> None:
    bench.commit()
    mend = _with_pack_spoilt(bench)
    answer = await bench.returns.stage(STAGE)
    assert isinstance(answer, orders.StageFailed)
    assert answer.retryable
    assert "is damaged" in answer.why
    mend()
    assert await bench.returns.stage(STAGE) == orders.Staged("r1")


async def test_a_snapshot_that_stays_damaged_is_given_up(bench: Bench) -> None:
    bench.commit()
    _with_pack_spoilt(bench)
    answers = [await bench.returns.stage(STAGE) for _ in range(DAMAGED_TIMES)]
    assert [isinstance(one, orders.StageFailed) and one.retryable for one in answers] == [
        *[True] * (DAMAGED_TIMES - 1),
        False,
    ]


async def test_what_was_damaged_while_it_was_looked_for_does_not_count_when_it_is_fetched(bench: Bench) -> None:
    """Else one bad read more would have an older snapshot, or none, taken in its place."""
    bench.commit()
    find = orders.FindSnapshot("r1", MD)
    mend_manifest = _with_manifest_spoilt(bench)
    for _ in range(DAMAGED_TIMES - 1):
        assert isinstance(await bench.returns.find(find), orders.StageFailed)
    mend_manifest()
    assert await bench.returns.find(find) == orders.SnapshotFound("r1", SnapshotRef(MD, 1))
    mend = _with_pack_spoilt(bench)
    answer = await bench.returns.stage(STAGE)
    assert isinstance(answer, orders.StageFailed)
    assert (answer.retryable, answer.damaged) == (True, False)
    mend()
    assert await bench.returns.stage(STAGE) == orders.Staged("r1")


async def test_a_manifest_that_stays_damaged_is_read_as_often_and_named(bench: Bench) -> None:
    bench.commit()
    find = orders.FindSnapshot("r1", MD)
    mend_manifest = _with_manifest_spoilt(bench)
    for _ in range(DAMAGED_TIMES - 1):
        answer = await bench.returns.find(find)
        assert isinstance(answer, orders.StageFailed)
        assert answer.retryable
    given_up = await bench.returns.find(find)
    assert isinstance(given_up, orders.SnapshotFound)
    assert "default/md/0/main@1: the manifest's header is damaged" in str(given_up.problem)
    mend_manifest()
    assert await bench.returns.find(find) == orders.SnapshotFound("r1", SnapshotRef(MD, 1))


async def test_bytes_that_come_are_told_while_a_snapshot_is_staged(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.commit()
    told = threading.Event()
    original = Staging.stage

    def stage(
        self: Staging, store: object, uid: str, ref: SnapshotRef, progress: Any = None, manifest: str = ""
    ) -> None:
        progress(7, 9)
        assert told.wait(60)
        original(self, bench.store, uid, ref, progress, manifest)

    monkeypatch.setattr(Staging, "stage", stage)
    outcomes = []
    async for outcome in bench.returns.stage_with_progress(STAGE, every_seconds=0.01):
        outcomes.append(outcome)
        told.set()
    assert outcomes[0] == orders.StageProgress("r1", 7)
    assert outcomes[-1] == orders.Staged("r1")


async def test_a_staged_snapshot_is_continued_without_the_store(bench: Bench) -> None:
    bench.commit()
    assert await bench.returns.stage(STAGE) == orders.Staged("r1")
    bench.store.remove(SnapshotRef(MD, 1))
    assert await bench.returns.restore_snapshot(CONTINUE) == orders.RestoreSucceeded("r1")
    assert bench.runtime.continued == [FACTS]
    assert not bench.staging.images_folder("r1").exists()


async def test_what_a_killed_agent_staged_by_half_is_staged_again(bench: Bench) -> None:
    bench.commit()
    bench.staging.images_folder("r1").mkdir(parents=True)
    assert await bench.returns.restore_snapshot(CONTINUE) == orders.RestoreSucceeded("r1")
    assert bench.runtime.continued == [FACTS]


async def test_an_interrupted_restore_is_ordered_again_and_finds_its_images(bench: Bench) -> None:
    bench.commit()
    await bench.returns.stage(STAGE)
    bench.runtime.continuing = [RestoreInterruptedError("CRIU was killed")]
    with pytest.raises(RestoreInterruptedError):
        await bench.returns.restore_snapshot(CONTINUE)
    assert await bench.returns.restore_snapshot(CONTINUE) == orders.RestoreSucceeded("r1")


async def test_a_restore_that_cannot_be_says_why_and_frees_the_disk(bench: Bench) -> None:
    bench.commit()
    await bench.returns.stage(STAGE)
    bench.runtime.continuing = [RestoreError("the program changed", evidence=("a line of CRIU's",))]
    failed = await bench.returns.restore_snapshot(CONTINUE)
    assert failed == orders.RestoreFailed("r1", "the program changed; a line of CRIU's")
    assert not bench.staging.images_folder("r1").exists()


async def test_files_that_have_changed_are_reported(bench: Bench) -> None:
    bench.commit()
    await bench.returns.stage(STAGE)
    bench.runtime.continuing = [FilesChangedError("/data/log has grown")]
    failed = await bench.returns.restore_snapshot(CONTINUE)
    assert failed == orders.RestoreFailed("r1", "/data/log has grown", files_changed=True)
    await bench.returns.stage(STAGE)
    bench.runtime.changed_files = ("/data/log has grown: truncated",)
    assert await bench.returns.restore_snapshot(CONTINUE) == orders.RestoreSucceeded("r1", bench.runtime.changed_files)


@pytest.mark.parametrize("ran_on", [True, False])
async def test_a_snapshot_says_itself_whether_its_workload_ran_on(bench: Bench, ran_on: bool) -> None:
    """The record of its checkpoint may have expired."""
    bench.commit()
    await bench.returns.stage(STAGE)
    facts = bench.staging.images_folder("r1").parent / "r1.facts"
    facts.write_bytes(msgspec.json.encode(FACTS | {RUNS_ON: ran_on}))
    await bench.returns.restore_snapshot(CONTINUE)
    assert bench.runtime.origins == [SnapshotOrigin(ran_on=ran_on)]


async def test_what_runs_already_because_it_was_restored_is_said_to_be_continued(bench: Bench) -> None:
    bench.runtime.runs = bench.runtime.restored = True
    assert await bench.returns.start_cold(orders.StartCold("r1", WORKLOAD, "late")) == orders.RestoreSucceeded("r1")
    assert await bench.returns.fail_workload(orders.FailWorkload("r1", WORKLOAD, "late")) == orders.RestoreSucceeded(
        "r1"
    )


async def test_only_the_restores_that_somebody_waits_for_keep_their_disk(bench: Bench) -> None:
    bench.commit()
    for uid in ("r1", "r2"):
        await bench.returns.stage(orders.Stage(uid, WORKLOAD, SnapshotRef(MD, 1)))
    await bench.returns.remove_all_but({"r2"})
    assert (bench.staging.restore_facts("r1"), bench.staging.restore_facts("r2")) == (None, FACTS)
    assert not bench.staging.images_folder("r1").exists()


async def test_what_the_next_dump_needs_is_fetched_once_the_workload_runs_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    memory = random.Random(1).randbytes(50 * 4096)
    ref = take(bench.store, MD, {"pages-1.img": memory}).ref
    backend = CountingBackend(tmp_path / "store")
    store = SnapshotStore(backend, cache_directory=tmp_path / "cache")
    prefetching = DumpPrefetching(store, bench.threads)
    returns = RestoreOrders(
        bench.runtime, bench.runtime, store, bench.staging, bench.threads, prefetching.start_prefetch
    )
    bench.staging.images_folder("r1").mkdir(parents=True)
    (bench.staging.images_folder("r1").parent / "r1.facts").write_bytes(b"{}")

    assert await returns.restore_snapshot(orders.RestoreSnapshot("r1", WORKLOAD, ref)) == orders.RestoreSucceeded("r1")
    async with asyncio.timeout(60):
        await asyncio.gather(*prefetching._tasks.values())

    (copy,) = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert copy.stat().st_size == 50 * 16
    backend.forget()
    assert take(store, MD, {"pages-1.img": memory}).summary.stats.new_bytes == 0
    assert not [key for key in backend.keys_read if "/pages/" in key]
    await prefetching.close()


async def test_a_prefetch_that_fails_costs_nothing_else(bench: Bench) -> None:
    prefetching = DumpPrefetching(bench.store, bench.threads)
    prefetching.start_prefetch(SnapshotRef(MD, 7))
    (task,) = prefetching._tasks.values()
    async with asyncio.timeout(60):
        await task
    assert not prefetching._tasks


def test_facts_that_an_agent_was_writing_when_it_was_killed_are_none(bench: Bench) -> None:
    """Another agent may be writing them: what somebody waits for is not removed."""
    bench.commit()
    bench.staging.stage(bench.store, "r.1", SnapshotRef(MD, 1))
    facts, hidden = bench.staged / "r.1.facts", bench.staged / ".r.1.facts.0123456789abcdef"
    facts.rename(hidden)
    assert bench.staging.restore_facts("r.1") is None
    bench.staging.remove_all_but(["r.1"])
    assert hidden.exists()
    bench.staging.remove_all_but([])
    assert list(bench.staged.iterdir()) == []


async def test_a_node_that_an_upgrade_has_not_reached_waits_for_it_before_it_goes_back(bench: Bench) -> None:
    bench.commit()
    bench.commit("c2")
    bench.spoil_format(2)
    said = await bench.returns.find(orders.FindSnapshot("r1", MD, newer_seconds=0.1))
    assert isinstance(said, orders.StageFailed)
    assert said.retryable
    assert "md/0/main@2: the snapshot has format 2, this program reads up to 1 (upgrade cedana-sched" in said.why
    assert await bench.returns.find(orders.FindSnapshot("r1", MD)) == orders.SnapshotFound("r1", SnapshotRef(MD, 1))


@pytest.mark.parametrize("wanted", [None, SnapshotRef(MD, 1)])
async def test_what_a_newer_version_wrote_is_asked_for_again_where_nothing_else_is(
    bench: Bench, wanted: SnapshotRef | None
) -> None:
    bench.commit()
    bench.spoil_format(1)
    for seconds in (0.0, 300.0):
        said = await bench.returns.find(orders.FindSnapshot("r1", MD, wanted, newer_seconds=seconds))
        assert isinstance(said, orders.StageFailed)
        assert said.retryable
