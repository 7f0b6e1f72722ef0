"""What the images of a snapshot hold: its processes, as `snapshots inspect` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cedana_sched.store.reader import SnapshotReader


def contents_of(reader: SnapshotReader) -> Any:
    del reader
    return None


def contents_text(contents: Any) -> str:
    del contents
    return ""
