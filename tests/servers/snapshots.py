"""Taking a snapshot without processes: for tests that are about the store."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.identity import Identity
from cedana_sched.model.manifest import Manifest, SnapshotMetadata
from cedana_sched.store.snapshot_store import SnapshotStore


def metadata(checkpoint_uid: str) -> SnapshotMetadata:
    return SnapshotMetadata(
        checkpoint_uid=checkpoint_uid,
        compatibility=Compatibility("x86_64", frozenset({"avx2"}), (6, 18), "4.2.1"),
        reason="Preempted",
        adapter="embedded",
        taken_at=1_700_000_000.0,
        timings={"freeze": 0.01},
        runtime={"argv": ["sleep", "1"], "pid": 42},
        labels={"app": "test"},
    )


def take(
    store: SnapshotStore, identity: Identity, streams: Mapping[str, bytes], checkpoint_uid: str | None = None
) -> Manifest:
    """One committed generation with these streams."""
    uid = checkpoint_uid or uuid.uuid4().hex
    with store.begin(identity, checkpoint_uid=uid) as writer:
        for name, data in streams.items():
            with writer.open_stream(name) as stream:
                for at in range(0, len(data), 300_000):
                    stream.write(data[at : at + 300_000])
        return writer.commit(metadata(uid))
