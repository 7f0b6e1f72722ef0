"""A snapshot is laid on a node only where that leaves the node more than the kubelet evicts pods for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from cedana_sched.agent.restore_orders import RestoreOrders
from cedana_sched.agent.staging import NoRoomError, Reserve, StagingSpace, needed_bytes
from cedana_sched.model import orders
from cedana_sched.model.identity import SnapshotRef
from cedana_sched.model.manifest import Manifest
from tests.unit.agent.test_returns import CONTINUE, MD, STAGE, Bench

BLOCK = 4096


def disk(free: int, blocks: int = 100_000, inodes: int = 1_000, free_inodes: int = 1_000) -> os.statvfs_result:
    """A filesystem with so many bytes free for us."""
    return os.statvfs_result(
        (BLOCK, BLOCK, blocks, free // BLOCK, free // BLOCK, inodes, free_inodes, free_inodes, 0, 255)
    )


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Of 64 KiB of data and a hole, beside a volume of 8 KiB."""
    bench = Bench(tmp_path)
    with bench.store.begin(MD, checkpoint_uid="c1") as writer:
        for name, content in (
            ("pages-1.img", os.urandom(65536) + bytes(1 << 22)),
            ("volumes/data.tar", os.urandom(8192)),
        ):
            with writer.open_stream(name) as stream:
                stream.write(content)
        writer.commit(bench.metadata("c1"))
    return bench.store.open_snapshot(SnapshotRef(MD, 1)).manifest


NEEDED = 65536 + 2 * 8192


def test_holes_need_nothing_and_volumes_lie_there_twice(manifest: Manifest) -> None:
    assert needed_bytes(manifest) == NEEDED


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-BLOCK, False)])
def test_the_reserve_stays_free(manifest: Manifest, tmp_path: Path, spare: int, fits: bool) -> None:
    reserve = int(100_000 * BLOCK * 0.25)
    room = StagingSpace(tmp_path / "not/there/yet", lambda: Reserve(0.25), lambda _: disk(NEEDED + reserve + spare))
    if fits:
        with room.allocate("r1", manifest):
            return
    words = r"default/md.* needs 0\.0 GiB below .* stay free for the kubelet"
    with pytest.raises(NoRoomError, match=words), room.allocate("r1", manifest):
        raise AssertionError("it was let in")


def test_several_at_once_do_not_fill_it_together(manifest: Manifest, tmp_path: Path) -> None:
    free = NEEDED + BLOCK
    room = StagingSpace(tmp_path, Reserve, lambda _: disk(free))
    with room.allocate("r1", manifest) as taking:
        with pytest.raises(NoRoomError, match="that are being staged"), room.allocate("r2", manifest):
            raise AssertionError("it was let in")
        taking(NEEDED, NEEDED)  # all of it is written, and counted by the filesystem
        with room.allocate("r2", manifest):
            pass
    with room.allocate("r3", manifest):
        pass


def of_namespace(manifest: Manifest, namespace: str) -> Manifest:
    identity = replace(manifest.ref.identity, namespace=namespace)
    return replace(manifest, summary=replace(manifest.summary, ref=SnapshotRef(identity, 1)))


class Disk:
    """A filesystem on which what was staged lies until it is freed."""

    def __init__(self, free: int) -> None:
        self.free = free

    def look(self, _: Path) -> os.statvfs_result:
        return disk(self.free)

    def lay(self, room: StagingSpace, uid: str, manifest: Manifest) -> None:
        with room.allocate(uid, manifest) as taking:
            self.free -= NEEDED
            taking(NEEDED, NEEDED)


def test_one_namespace_leaves_room_to_others(manifest: Manifest, tmp_path: Path) -> None:
    node = Disk(5 * NEEDED)
    room = StagingSpace(tmp_path, look=node.look, namespace_share=0.5)
    greedy, modest = of_namespace(manifest, "greedy"), of_namespace(manifest, "modest")
    node.lay(room, "g1", greedy)
    node.lay(room, "g2", greedy)
    with pytest.raises(NoRoomError, match="where snapshots of namespace greedy that are not continued yet take"):
        node.lay(room, "g3", greedy)
    node.lay(room, "m1", modest)
    node.lay(room, "m2", modest)

    room.free_allocation("g1")
    node.free += NEEDED
    node.lay(room, "g3", greedy)


def test_a_single_one_may_take_all(manifest: Manifest, tmp_path: Path) -> None:
    node = Disk(NEEDED)
    node.lay(StagingSpace(tmp_path, look=node.look, namespace_share=0.1), "r1", manifest)


def test_what_could_not_be_staged_takes_nothing(manifest: Manifest, tmp_path: Path) -> None:
    room = StagingSpace(tmp_path, look=Disk(2 * NEEDED).look, namespace_share=0.1)
    with pytest.raises(OSError, match="spoilt"), room.allocate("r1", manifest):
        raise OSError("spoilt")
    with room.allocate("r2", manifest):
        pass


async def test_what_is_continued_makes_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.commit()
    bench.staging._room = room = StagingSpace(tmp_path, namespace_share=1e-12)
    assert await bench.returns.stage(STAGE) == orders.Staged("r1")
    refused = await bench.returns.stage(replace(STAGE, restore_uid="r2"))
    assert isinstance(refused, orders.StageFailed)
    assert refused.retryable
    assert "that one namespace may take" in refused.why

    assert await bench.returns.restore_snapshot(CONTINUE) == orders.RestoreSucceeded("r1")
    assert room._taken == {}
    assert await bench.returns.stage(replace(STAGE, restore_uid="r2")) == orders.Staged("r2")


def test_inodes_run_out_too(manifest: Manifest, tmp_path: Path) -> None:
    room = StagingSpace(tmp_path, lambda: Reserve(0.16, inode_share=0.06), lambda _: disk(1 << 40, free_inodes=61))
    with pytest.raises(NoRoomError, match=r"needs 2 files .* and 1 inodes"), room.allocate("r1", manifest):
        raise AssertionError("it was let in")


async def test_a_full_node_says_so_and_keeps_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.commit()
    bench.staging._room = StagingSpace(tmp_path, lambda: Reserve(0.5), lambda _: disk(BLOCK))
    returns = RestoreOrders(bench.runtime, bench.runtime, bench.store, bench.staging, bench.threads)
    failed = await returns.stage(STAGE)
    assert isinstance(failed, orders.StageFailed)
    assert failed.retryable
    assert "GiB that stay free for the kubelet" in failed.why
    assert not bench.staging.images_folder("r1").exists()
