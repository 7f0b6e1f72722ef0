"""A workload that began anew does not push out what it began without: the last of each line of work stays."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.manifest import SnapshotSummary
from cedana_sched.model.policy import Retention
from cedana_sched.store import layout
from cedana_sched.store.snapshot_store import SnapshotStore, open_backend
from cedana_sched.store.storage_config import StorageConfig
from tests.servers.snapshots import metadata

MD = Identity("bio", "md")
KEEP = Retention(keep_last=2)
HOUR = 3600.0


class Story:
    """One identity's generations in a real store, an hour apart; retention follows each, as after a checkpoint."""

    def __init__(self, storage: StorageConfig, retention: Retention = KEEP) -> None:
        self.storage = storage
        self.store = SnapshotStore.open(storage)
        self._retention = retention
        self.now = 1_700_000_000.0

    def take(self, run: str | None, continues: int | None = None, *, spare: Collection[int] = ()) -> SnapshotSummary:
        """The next generation, of a program that was continued from that one; run None: the writer is not told."""
        self.now += HOUR
        origin = SnapshotRef(MD, continues) if continues is not None else None
        lineage = Lineage(run, origin) if run is not None else None
        with self.store.begin(MD, checkpoint_uid=f"c{self.now}", lineage=lineage) as writer:
            with writer.open_stream("core.img") as stream:
                stream.write(str(writer.ref.generation).encode())
            facts = msgspec.structs.replace(metadata(f"c{self.now}"), taken_at=self.now)
            summary = writer.commit(facts).summary
        self.store.apply_retention(MD, self._retention, self.now, spare=spare)
        return summary

    @property
    def left(self) -> list[int]:
        fresh = SnapshotStore.open(self.storage)
        found = fresh.list("bio")
        for one in found:
            assert fresh.open_snapshot(one.ref).read("core.img") == str(one.ref.generation).encode()
        return [one.ref.generation for one in found]


def test_cold_generations_do_not_push_out_the_last_good_one(storage: StorageConfig) -> None:
    story = Story(storage)
    story.take("p1")
    story.take("p2", 1)
    story.take("p3", 2)
    first_cold = story.take("p4")
    assert first_cold.abandoned_snapshot == SnapshotRef(MD, 3)
    assert story.left == [2, 3, 4]
    for generation in range(5, 9):
        following = story.take(f"p{generation}", generation - 1)
        assert following.abandoned_snapshot is None, "it was said once"
    assert story.left == [3, 7, 8]


def test_one_line_of_work_keeps_what_its_policy_says(storage: StorageConfig) -> None:
    story = Story(storage)
    for generation in range(1, 6):
        story.take(f"p{generation}", generation - 1 or None)
    assert story.left == [4, 5]
    story.take("p5", 4)
    assert story.left == [5, 6], "a pod that was spared, and saved again, continues what it has made itself"
    story.take(None)
    story.take("p8")
    assert story.left == [6, 7, 8], "who is not told continues the newest; who knows that it does not, does not"


def test_who_returns_to_the_good_one_leaves_the_cold_ones(storage: StorageConfig) -> None:
    story = Story(storage)
    story.take("p1")
    story.take("p2")
    story.take("p3", 2)
    back = story.take("p4", 1)
    assert back.abandoned_snapshot == SnapshotRef(MD, 3)
    story.take("p5", 4)
    story.take("p6", 5)
    assert story.left == [3, 5, 6]


def test_of_many_lines_as_many_are_kept_as_of_generations(storage: StorageConfig) -> None:
    story = Story(storage)
    for number in range(1, 7):
        story.take(f"p{number}")
    assert story.left == [3, 4, 5, 6], "the newest two that were left, and the newest two"


def test_what_was_left_goes_when_a_person_removes_it_or_when_it_is_too_old(storage: StorageConfig) -> None:
    story = Story(storage, Retention(keep_last=2, max_age_seconds=2.5 * HOUR))
    story.take("p1")
    story.now += 24 * HOUR
    story.take("p2")
    story.take("p3", 2)
    story.take("p4", 3)
    assert story.left == [1, 3, 4], "its age counts from when it was left"
    story.take("p5", 4)
    assert story.left == [4, 5]
    story.take("p6")
    story.store.remove(SnapshotRef(MD, 5))
    story.take("p7", 6)
    assert story.left == [6, 7]


def test_a_damaged_generation_does_not_make_forget_what_was_left(storage: StorageConfig) -> None:
    story = Story(storage)
    story.take("p1")
    story.take("p2")
    story.take("p3", 2)
    backend = open_backend(storage)
    (entry,) = [one for one in backend.list(layout.identity_folder(MD)) if "0000000003" in one.key]
    data = bytearray(backend.get(entry.key, at_most=1 << 20))
    data[120] ^= 0xFF
    backend.put(entry.key, data)
    story.store = SnapshotStore.open(storage)
    story.take("p4", 2)
    assert [one.generation for one in story.store.list("bio")[-1].abandons] == [1]
